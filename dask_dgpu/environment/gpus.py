"""GPUs and their memory, read with NVML; this creates no CUDA context."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from dask.utils import format_bytes

from dask_dgpu.errors import DgpuError

POOL_SHARE = 0.5
"""Initial size of an RMM pool, as a fraction of the device's free memory; it can grow."""

LEAST_FREE = 2 << 30
"""Bytes of a device that a worker needs: CUDA context, libraries and a small pool."""

ALIGNMENT = 1 << 20


class GpuMemory(NamedTuple):
    """The memory of a GPU in bytes, and its number or UUID, as in ``CUDA_VISIBLE_DEVICES``."""

    name: str
    free: int
    total: int

    def __str__(self) -> str:
        """Name, free and total memory."""
        return f"GPU {self.name} has {format_bytes(self.free)} of {format_bytes(self.total)} free"


def visible_gpus(visible: Any = None) -> tuple[str, ...]:
    """Return numbers or UUIDs of the GPUs of this process; none without a driver.

    ``visible`` replaces the environment variable ``CUDA_VISIBLE_DEVICES``; it may be a sequence.
    """
    try:
        with nvml_session() as nvml:
            present = int(nvml.nvmlDeviceGetCount())
    except Exception:  # without library or driver there is no GPU
        return ()
    if visible is None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(map(str, range(present)))
    parts = visible.split(",") if isinstance(visible, str) else list(visible)
    named = [str(part).strip() for part in parts]
    return tuple(name for name in named if name not in ("", "-1"))[:present]


def count_gpus() -> int:
    """Return the number of GPUs of this process; 0 without a driver."""
    return len(visible_gpus())


def read_memory(gpus: Sequence[str]) -> list[GpuMemory]:
    """Return the memory of GPUs, except those with memory unknown to NVML."""
    with nvml_session() as nvml:
        memories = _read(nvml, gpus, nvml.nvmlDeviceGetMemoryInfo)
    return [GpuMemory(name, int(each.free), int(each.total)) for name, each in memories.items()]


def read_driver() -> str:
    """Return the version of the driver and the newest version of CUDA that it supports.

    Raises
    ------
    Exception
        If NVML is not installed, or there is no driver.
    """
    with nvml_session() as nvml:
        newest = int(nvml.nvmlSystemGetCudaDriverVersion())
        driver = text_of(nvml.nvmlSystemGetDriverVersion())
    return f"{driver}, for CUDA up to {newest // 1000}.{newest % 1000 // 10}"


def read_models(gpus: Sequence[str]) -> dict[str, str]:
    """Return the model of each GPU, except of those unknown to NVML."""
    with nvml_session() as nvml:
        names = _read(nvml, gpus, nvml.nvmlDeviceGetName)
    return {name: text_of(model) for name, model in names.items()}


def _read(nvml: Any, gpus: Sequence[str], function: Callable[[Any], Any]) -> dict[str, Any]:
    """Return what NVML knows of each GPU; it knows no memory of GPUs that share the host's."""
    readings = {}
    for name in gpus:
        with suppress(nvml.NVMLError):
            readings[name] = function(handle_of(nvml, name))
    return readings


def pool_bytes(memories: Sequence[GpuMemory]) -> int | None:
    """Return the initial bytes of each worker's RMM pool, ``None`` without known memories.

    dask-cuda has one size for all workers, so the GPU with the least free memory decides. Raises
    :class:`DgpuError` if a GPU has too little free memory for a worker.
    """
    full = [memory for memory in memories if memory.free < LEAST_FREE]
    if full:
        raise DgpuError(
            f"expected at least {format_bytes(LEAST_FREE)} of free memory on each GPU, but "
            f"{' and '.join(map(str, full))}; CUDA_VISIBLE_DEVICES selects other GPUs"
        )
    if not memories:
        return None
    free = min(memory.free for memory in memories)
    return int(free * POOL_SHARE) // ALIGNMENT * ALIGNMENT


@contextmanager
def nvml_session() -> Iterator[Any]:
    """Surround calls of NVML.

    Yields
    ------
    module
        Its bindings.
    """
    import pynvml

    pynvml.nvmlInit()
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def handle_of(nvml: Any, name: str) -> Any:
    """Return NVML's handle of a GPU by its number or UUID."""
    if name.isdigit():
        return nvml.nvmlDeviceGetHandleByIndex(int(name))
    return nvml.nvmlDeviceGetHandleByUUID(name)


def text_of(value: str | bytes) -> str:
    """Return a text of NVML, which older bindings return as bytes."""
    return value.decode() if isinstance(value, bytes) else value
