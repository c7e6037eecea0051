"""The entry point ``dgpu`` of ``dask.array.backends``, which creates arrays."""

from __future__ import annotations

import importlib.util

from dask.array.backends import ArrayBackendEntrypoint, NumpyBackendEntrypoint

from dask_dgpu.environment.gpus import count_gpus


def array_backend() -> ArrayBackendEntrypoint:
    """Return a CuPy backend if there are GPUs, else Dask's NumPy backend.

    Dask calls this when ``array.backend`` is ``"dgpu"`` and an array is created.
    """
    if importlib.util.find_spec("cupy") is not None and count_gpus() > 0:
        from dask_dgpu.session.cupy_backend import CupyBackend

        return CupyBackend()
    return NumpyBackendEntrypoint()
