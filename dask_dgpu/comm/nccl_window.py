"""Reading a peer's memory on the same host: mapped once, copied by the copy engines.

A GPU's copy engines move data between the GPUs of one host while all its
multiprocessors compute, which NCCL's kernels would take a part of. What it needs
is the peer's allocation mapped into this process (CUDA IPC). Opening one takes
milliseconds, and a peer that frees an allocation which others have mapped is
undefined behaviour. So only memory of an RMM pool is offered: its few large
allocations live as long as their process, and are opened once.
"""

from __future__ import annotations

import pickle
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np

from dask_dgpu.comm.buffers import check_peers
from dask_dgpu.comm.protocol import Buffer, Work

if TYPE_CHECKING:
    from dask_dgpu.comm.nccl import NcclComm


@dataclass(frozen=True)
class Export:
    """Where a buffer is, for another process of the same host.

    Parameters
    ----------
    handle : bytes
        CUDA's name of the allocation that holds it; none for an empty buffer.
    offset : int
        Bytes from the start of the allocation.
    shape, strides : tuple of int
        Of the array; strides in bytes.
    dtype : str
        Of the array.
    """

    handle: bytes
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


class Mappings:
    """Allocations of other processes that this one has mapped, until it is told to close them.

    Attributes
    ----------
    known : set of bytes
        The handles that all ranks have opened.
    refused : bool
        Whether one of them could not be opened by one of the ranks: then none is used.
    lock : Lock
        Held while a read is issued, and while everything is closed.
    """

    def __init__(self) -> None:
        self.known: set[bytes] = set()
        self.refused = False
        self.lock = threading.Lock()
        self._opened: dict[bytes, int] = {}

    def open(self, handles: Sequence[bytes]) -> bool:
        """Map allocations that are not mapped yet; whether all of them could be."""
        try:
            for handle in handles:
                if handle not in self._opened:
                    self._opened[handle] = cupy.cuda.runtime.ipcOpenMemHandle(handle)
        except cupy.cuda.runtime.CUDARuntimeError:
            return False
        return True

    def array(self, export: Export, device: int) -> Buffer:
        """View a peer's buffer as an array."""
        if not export.handle:
            return cupy.empty(export.shape, export.dtype)
        span = sum(
            (length - 1) * abs(stride)
            for length, stride in zip(export.shape, export.strides, strict=True)
        )
        start = self._opened[export.handle] + export.offset
        nbytes = span + np.dtype(export.dtype).itemsize
        memory = cupy.cuda.UnownedMemory(start, nbytes, self, device)
        return cupy.ndarray(
            export.shape,
            export.dtype,
            cupy.cuda.MemoryPointer(memory, 0),
            export.strides,
        )

    def close(self) -> None:
        """Unmap everything: while it is mapped, the memory of a dead process is not freed."""
        with self.lock:
            cupy.cuda.Device().synchronize()
            for pointer in self._opened.values():
                cupy.cuda.runtime.ipcCloseMemHandle(pointer)
            self._opened.clear()


class NcclWindow:
    """A :class:`~dask_dgpu.comm.protocol.Window` on the GPUs of one host."""

    def __init__(self, comm: NcclComm, mappings: Mappings, buffers: list[list[Buffer]]) -> None:
        self._comm = comm
        self._mappings = mappings
        self._buffers = buffers

    def get(self, peer: int, which: int, part: tuple[slice, ...], target: Buffer) -> None:
        """Copy a part of a rank's buffer, on the caller's stream."""
        check_peers([peer], self._comm.size)
        with self._mappings.lock:
            self._comm.check()  # an abort unmaps
            copy(target, self._buffers[peer][which][part])

    def close(self) -> Work:
        """Say that this rank has read all it needs: NCCL's stream orders it behind the reads."""
        return self._comm.all_reduce(cupy.zeros(1, np.int32))


def open_window(comm: NcclComm, mappings: Mappings, buffers: Sequence[Buffer]) -> NcclWindow | None:
    """Tell all ranks where the buffers are, and map what they tell; ``None`` for all if not."""
    if mappings.refused:
        return None
    said = _hear(comm, (host(), None if comm.size == 1 else exports(buffers)))
    hosts = {place for place, _ in said}
    offered = [found for _, found in said if found is not None]
    if len(hosts) > 1 or len(offered) < comm.size:
        return None
    handles = {export.handle for found in offered for export in found if export.handle}
    if not handles <= mappings.known:
        # every rank sees the same names, so all of them agree to ask
        theirs = (found for rank, found in enumerate(offered) if rank != comm.rank)
        others = [export.handle for found in theirs for export in found if export.handle]
        agreed = cupy.asarray([mappings.open(others)], dtype=np.int32)
        comm.all_reduce(agreed, "min").wait()
        mappings.refused = not int(agreed[0])
        comm.check()
        if mappings.refused:
            return None
        mappings.known |= handles
    device = cupy.cuda.runtime.getDevice()
    arrays = [
        list(buffers) if rank == comm.rank else [mappings.array(one, device) for one in found]
        for rank, found in enumerate(offered)
    ]
    return NcclWindow(comm, mappings, arrays)


def exports(buffers: Sequence[Buffer]) -> list[Export] | None:
    """Name the places of buffers for other processes; ``None`` if one can not be named."""
    from cuda.bindings import driver

    if not pooled():
        return None
    found = []
    for buffer in buffers:
        if not buffer.size:
            found.append(Export(b"", 0, buffer.shape, buffer.strides, buffer.dtype.str))
            continue
        status, base, _size = driver.cuMemGetAddressRange(buffer.data.ptr)
        if status != driver.CUresult.CUDA_SUCCESS:
            return None
        try:
            handle = cupy.cuda.runtime.ipcGetMemHandle(buffer.data.ptr)
        except cupy.cuda.runtime.CUDARuntimeError:
            return None
        offset = buffer.data.ptr - int(base)
        found.append(Export(handle, offset, buffer.shape, buffer.strides, buffer.dtype.str))
    return found


def copy(target: Buffer, source: Buffer) -> None:
    """Copy between arrays of one shape, by the copy engines where rows are contiguous."""
    if not target.size:
        return
    if target.dtype != source.dtype or target.ndim != 2 or not (_rows(target) and _rows(source)):
        target[...] = source
        return
    height, width = target.shape[0], target.shape[1] * target.itemsize
    cupy.cuda.runtime.memcpy2DAsync(
        target.data.ptr,
        max(width, target.strides[0]),
        source.data.ptr,
        max(width, source.strides[0]),
        width,
        height,
        cupy.cuda.runtime.memcpyDefault,
        cupy.cuda.get_current_stream().ptr,
    )


def _rows(array: Buffer) -> bool:
    """Whether the rows of a matrix are contiguous, one after the other in memory."""
    height, width = array.shape
    packed = width == 1 or array.strides[1] == array.itemsize
    return packed and (height == 1 or array.strides[0] >= width * array.itemsize)


def pooled() -> bool:
    """Whether CuPy's memory comes from an RMM pool, and thus stays mapped for good."""
    rmm = sys.modules.get("rmm")
    if rmm is None:
        return False
    resource = rmm.mr.get_current_device_resource()
    while resource is not None and not isinstance(resource, rmm.mr.PoolMemoryResource):
        resource = getattr(resource, "upstream_mr", None)
    return resource is not None and "rmm" in getattr(cupy.cuda.get_allocator(), "__module__", "")


def host() -> str:
    """Name this host, and its present boot: memory can be mapped within one only."""
    return f"{socket.gethostname()} {Path('/proc/sys/kernel/random/boot_id').read_text()}"


def _hear(comm: NcclComm, said: Any) -> list[Any]:
    """Say something to all ranks, and return what each said."""
    data = np.frombuffer(pickle.dumps(said), np.uint8)
    sizes = cupy.empty(comm.size, np.int64)
    comm.all_gather(sizes, cupy.full(1, len(data), np.int64)).wait()
    counts = sizes.get()
    mine = cupy.zeros(int(counts.max()), np.uint8)
    mine[: len(data)] = cupy.asarray(data)
    everything = cupy.empty((comm.size, mine.size), np.uint8)
    comm.all_gather(everything, mine).wait()
    heard = everything.get()
    comm.check()
    return [pickle.loads(row[:n].tobytes()) for row, n in zip(heard, counts, strict=True)]
