"""Communicators: what the ranks of a gang send each other, over what.

:mod:`~dask_dgpu.comm.protocol` is the contract, :mod:`~dask_dgpu.comm.bootstrap`
the way in for ranks in processes, :mod:`~dask_dgpu.comm.local` for threads.
"""
