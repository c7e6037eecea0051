"""The memory and the state of the device of one process, read by NVML, or of the host."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dask_dgpu.environment.facts import memory_for_blocks
from dask_dgpu.environment.gpus import handle_of, nvml_session, text_of, visible_gpus

if TYPE_CHECKING:
    from distributed import Worker

logger = logging.getLogger(__name__)

HOST = "host memory"
CPU, CUDA = "cpu", "cuda"


@dataclass(frozen=True)
class Device:
    """The device of a worker; bytes, ``None`` for what is not known.

    Parameters
    ----------
    kind : {"cpu", "cuda"}
        Host memory, or a GPU.
    name : str
        Number or UUID of the GPU, and its model.
    total : int
        Bytes of the device; of a host those that the worker may use.
    free : int
        Bytes that nobody uses.
    used : int or None
        Bytes of this worker's process.
    others : int or None
        Bytes of other processes.
    blocks : int or None
        Bytes that a gang may use without a safety margin, if there is a limit.
    pool : int or None
        Bytes of RMM's pool.
    utilisation : int or None
        Percent of the last moments in which a kernel ran.
    temperature : int or None
        Degrees Celsius.
    peers : tuple of str
        The GPUs of this host that NVLink reaches directly.
    """

    kind: str
    name: str
    total: int
    free: int
    used: int | None = None
    others: int | None = None
    blocks: int | None = None
    pool: int | None = None
    utilisation: int | None = None
    temperature: int | None = None
    peers: tuple[str, ...] = ()


def read_device(dask_worker: Worker | None = None) -> Device:
    """Return the device of this process: its first GPU, or else the host's memory.

    ``dask_worker`` is the worker of this process, which may have a limit of memory.
    """
    gpus = visible_gpus()
    try:
        return read_gpu(gpus[0]) if gpus else read_host(dask_worker)
    except Exception:  # NVML's: it does not know the memory of a GPU that shares the host's
        logger.debug("NVML cannot read GPU %s", gpus[0], exc_info=True)
        return read_host(dask_worker)


def read_gpu(gpu: str) -> Device:
    """Return the state of a GPU by its number or UUID; this creates no CUDA context."""
    with nvml_session() as nvml:
        handle = handle_of(nvml, gpu)

        def ask(function: Callable[..., Any], *arguments: Any) -> Any:
            try:
                return function(handle, *arguments)
            except nvml.NVMLError:  # not every GPU knows everything
                return None

        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        processes = ask(nvml.nvmlDeviceGetComputeRunningProcesses) or []
        # a container may have other numbers of processes than the driver
        own = [process.usedGpuMemory for process in processes if process.pid == os.getpid()]
        used = int(own[0]) if own and own[0] is not None else None
        taken = int(memory.total) - int(memory.free)
        rates = ask(nvml.nvmlDeviceGetUtilizationRates)
        degrees = ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU)
        return Device(
            CUDA,
            f"{gpu} ({text_of(nvml.nvmlDeviceGetName(handle))})",
            int(memory.total),
            int(memory.free),
            used,
            None if used is None else taken - used,
            int(memory.free) + (used or 0),
            _pool_bytes(),
            None if rates is None else int(rates.gpu),
            None if degrees is None else int(degrees),
            _peers(nvml, handle),
        )


def _peers(nvml: Any, handle: Any) -> tuple[str, ...]:
    peers = []
    for number in range(int(nvml.nvmlDeviceGetCount())):
        with suppress(nvml.NVMLError):
            other = nvml.nvmlDeviceGetHandleByIndex(number)
            if nvml.nvmlDeviceGetUUID(other) == nvml.nvmlDeviceGetUUID(handle):
                continue
            status = nvml.nvmlDeviceGetP2PStatus(handle, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
            if status == nvml.NVML_P2P_STATUS_OK:
                peers.append(str(number))
    return tuple(peers)


def _pool_bytes() -> int | None:
    """Return the size of RMM's pool, if this process has one; this imports no CuPy.

    To ask RMM creates a CUDA context, so a process that has not used CuPy is not asked.
    """
    if "cupy" not in sys.modules:
        return None
    with suppress(Exception):  # CUDA's, of many classes
        from dask_dgpu.comm.nccl.window import rmm_pool

        pool = rmm_pool()
        return None if pool is None else int(pool.pool_size())
    return None


def read_host(dask_worker: Worker | None) -> Device:
    """Return the memory of the host, or the part of it that a worker may use."""
    import psutil

    memory, used = psutil.virtual_memory(), psutil.Process().memory_info().rss
    limit = None if dask_worker is None else dask_worker.memory_manager.memory_limit
    if dask_worker is None or not limit:
        total, free = memory.total, memory.available
        return Device(CPU, HOST, total, free, used, max(0, total - free - used), None)
    free = max(0, min(limit - used, memory.available))
    others = max(0, limit - used - free)
    return Device(CPU, HOST, limit, free, used, others, memory_for_blocks(dask_worker))
