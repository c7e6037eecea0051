"""The entry point ``dgpu`` of ``dask.array.backends``: where blocks are born."""

from __future__ import annotations

import importlib.util
from typing import Any

from dask.array.backends import CupyBackendEntrypoint, NumpyBackendEntrypoint
from dask.array.dispatch import ArrayBackendEntrypoint

from dask_dgpu.gpus import count_gpus


class DgpuBackendEntrypoint(ArrayBackendEntrypoint):
    """Creation functions that make CuPy blocks where there are GPUs, else NumPy blocks."""

    def __init__(self) -> None:
        on_gpu = importlib.util.find_spec("cupy") is not None and count_gpus() > 0
        self._backend = CupyBackendEntrypoint() if on_gpu else NumpyBackendEntrypoint()

    def __getattribute__(self, name: str) -> Any:
        """Defer to the backend of the blocks, for everything it offers."""
        if name.startswith("_"):
            return super().__getattribute__(name)
        return getattr(self._backend, name)
