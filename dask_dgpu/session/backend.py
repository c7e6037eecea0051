"""The entry point ``dgpu`` of ``dask.array.backends``, which creates arrays."""

from __future__ import annotations

import importlib.util

from dask.array.backends import ArrayBackendEntrypoint, NumpyBackendEntrypoint

from dask_dgpu.environment.gpus import count_gpus


def array_backend() -> ArrayBackendEntrypoint:
    """Return Dask's CuPy backend if there are GPUs, else its NumPy backend.

    Dask calls this when ``array.backend`` is ``"dgpu"`` and an array is created.
    """
    if importlib.util.find_spec("cupy") is not None and count_gpus() > 0:
        from dask.array.cupy_entry_point import CupyBackendEntrypoint

        return CupyBackendEntrypoint()
    return NumpyBackendEntrypoint()
