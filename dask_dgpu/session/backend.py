"""The entry point ``dgpu`` of ``dask.array.backends``, which creates arrays."""

from __future__ import annotations

import importlib.util
import sys

from dask.array.backends import ArrayBackendEntrypoint, array_creation_dispatch

from dask_dgpu.environment.gpus import count_gpus


def array_backend() -> ArrayBackendEntrypoint:
    """Return a CuPy backend if there are GPUs, else one that creates as Dask's NumPy backend.

    Dask and dask_array call this when ``array.backend`` is ``"dgpu"`` and an array is created.
    """
    if importlib.util.find_spec("cupy") is not None and count_gpus() > 0:
        from dask_dgpu.session.cupy_backend import CupyBackend

        return _for_both(CupyBackend())
    return _for_both(array_creation_dispatch.dispatch("numpy"))


def _for_both(backend: ArrayBackendEntrypoint) -> ArrayBackendEntrypoint:
    """Return a backend that dask_array takes too: it asks for a class of its own."""
    module = sys.modules.get("dask_array._backends_array")
    if module is None:
        return backend
    bases = type(backend), module.ArrayBackendEntrypoint
    entry: ArrayBackendEntrypoint = type("Backend", bases, {})()
    vars(entry).update(vars(backend))  # Dask has registered functions as attributes
    return entry
