"""Transforms of arrays in any chunks, by the names of ``numpy.fft`` and ``scipy.fft``."""

from dask_dgpu.array.fft import *  # noqa: F403
from dask_dgpu.array.fft import __all__  # noqa: F401
