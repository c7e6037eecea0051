"""Reads of a peer's memory on the same host, by the copy engines.

A GPU's copy engines move data between the GPUs of one host while all its multiprocessors
compute; NCCL's kernels would occupy some of them. A read needs the peer's allocation mapped into
this process (CUDA IPC). Mapping takes milliseconds, and freeing a mapped allocation is undefined
behaviour. So ranks only offer memory of an RMM pool: its few large allocations live as long as
their process, and are mapped once.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import cupy
import numpy as np

from dask_dgpu.comm.common import check_peers
from dask_dgpu.comm.protocol import Buffer, Work
from dask_dgpu.comm.store import meet

if TYPE_CHECKING:
    from dask_dgpu.comm.nccl.communicator import NcclComm


class Place(NamedTuple):
    """The location of a buffer, for another process of the same host.

    ``allocation`` is a position among the offer's handles, -1 for an empty buffer; ``offset``
    and ``strides`` are in bytes.
    """

    allocation: int
    offset: int
    shape: Sequence[int]
    strides: Sequence[int]
    dtype: str


@dataclass(frozen=True)
class Offer:
    """The locations of a rank's buffers.

    ``host`` names host and boot: memory can only be mapped within one boot of one host. ``handles``
    are CUDA's for their allocations, in hexadecimal. ``places`` is ``None`` if one of the buffers
    cannot be offered.
    """

    host: str
    handles: list[str]
    places: list[Place] | None


class Mappings:
    """Mapped allocations of other processes."""

    def __init__(self) -> None:
        self.known: set[str] = set()  # the handles that all ranks have mapped
        self.refused = False  # a rank could not map one of them: then none is used
        self.lock = threading.Lock()  # held while a read is issued, or everything is unmapped
        self._opened: dict[str, int] = {}
        self._exchanges = 0

    def all_gather(self, comm: NcclComm, value: Any) -> list[Any]:
        """Return the values of all ranks.

        They travel over the store, so nothing is copied to or from the GPU or waits for it.
        """
        self._exchanges += 1
        texts = meet(
            comm._store,
            f"window-{self._exchanges}",
            json.dumps(value),
            rank=comm.rank,
            size=comm.size,
            limit=None,
            lifetime=comm._lifetime,
        )
        return [json.loads(text) for text in texts]

    def open(self, handles: Collection[str]) -> bool:
        """Map further allocations; return whether all could be mapped."""
        try:
            for handle in handles:
                if handle not in self._opened:
                    opened = cupy.cuda.runtime.ipcOpenMemHandle(bytes.fromhex(handle))
                    self._opened[handle] = opened
        except cupy.cuda.runtime.CUDARuntimeError:
            return False
        return True

    def array(self, handles: Sequence[str], place: Place, device: int) -> Buffer:
        """View a peer's buffer as an array."""
        shape, strides = tuple(place.shape), tuple(place.strides)
        if place.allocation < 0:
            return cupy.empty(shape, place.dtype)
        span = sum((n - 1) * abs(stride) for n, stride in zip(shape, strides, strict=True))
        start = self._opened[handles[place.allocation]] + place.offset
        nbytes = span + np.dtype(place.dtype).itemsize
        memory = cupy.cuda.UnownedMemory(start, nbytes, self, device)
        return cupy.ndarray(shape, place.dtype, cupy.cuda.MemoryPointer(memory, 0), strides)

    def close(self) -> None:
        """Unmap everything: a mapping keeps the memory of a dead process allocated."""
        with self.lock:
            if self._opened:  # waits only if needed: not while another thread records a graph
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
        """Announce the end of this rank's reads; NCCL's stream comes after them."""
        return self._comm.all_reduce(cupy.zeros(1, np.int32))


def open_window(comm: NcclComm, mappings: Mappings, buffers: Sequence[Buffer]) -> NcclWindow | None:
    """Offer the buffers to all ranks, and map theirs; ``None`` for all if one rank cannot."""
    if mappings.refused or comm.size == 1:
        return None
    offers = [Offer(**facts) for facts in mappings.all_gather(comm, asdict(offer(buffers)))]
    if len({one.host for one in offers}) > 1 or any(one.places is None for one in offers):
        return None
    handles = {handle for one in offers for handle in one.handles}
    if not handles <= mappings.known:
        # every rank sees the same handles, so all ranks get here
        theirs = [one for rank, one in enumerate(offers) if rank != comm.rank]
        opened = mappings.open({handle for one in theirs for handle in one.handles})
        mappings.refused = not all(mappings.all_gather(comm, opened))
        if mappings.refused:
            return None
        mappings.known |= handles
    # no rank reads before the streams of all ranks have written their buffers
    comm.all_reduce(cupy.zeros(1, np.int32)).wait()
    device = cupy.cuda.runtime.getDevice()
    arrays = [
        [mappings.array(one.handles, Place(*place), device) for place in one.places or ()]
        if rank != comm.rank
        else list(buffers)
        for rank, one in enumerate(offers)
    ]
    return NcclWindow(comm, mappings, arrays)


def offer(buffers: Sequence[Buffer]) -> Offer:
    """Return the locations of buffers for other processes."""
    handles: dict[str, int] = {}
    places = []
    for buffer in buffers:
        allocation, offset = -1, 0
        if buffer.size:
            range_of_memory = _allocation(buffer.data.ptr) if pooled() else None
            if range_of_memory is None:
                return Offer(host(), [], None)
            handle, offset = range_of_memory
            allocation = handles.setdefault(handle, len(handles))
        places.append(Place(allocation, offset, buffer.shape, buffer.strides, buffer.dtype.str))
    return Offer(host(), list(handles), places)


def _allocation(pointer: int) -> tuple[str, int] | None:
    """Return the handle of the allocation with an address, and the offset in it."""
    from cuda.bindings import driver

    status, base, _size = driver.cuMemGetAddressRange(pointer)
    if status != driver.CUresult.CUDA_SUCCESS:
        return None
    try:
        return cupy.cuda.runtime.ipcGetMemHandle(pointer).hex(), pointer - int(base)
    except cupy.cuda.runtime.CUDARuntimeError:
        return None


def copy(target: Buffer, source: Buffer) -> None:
    """Copy between arrays of one shape, by the copy engines if rows are contiguous."""
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
    """Return whether the rows of a matrix are contiguous and in order in memory."""
    height, width = array.shape
    packed = width == 1 or array.strides[1] == array.itemsize
    return packed and (height == 1 or array.strides[0] >= width * array.itemsize)


def pooled() -> bool:
    """Return whether CuPy allocates from an RMM pool, whose memory may stay mapped."""
    return rmm_pool() is not None and "rmm" in getattr(cupy.cuda.get_allocator(), "__module__", "")


def obtainable() -> int:
    """Return the bytes of the device in this process's pools or free, without other processes'."""
    free, total = cupy.cuda.runtime.memGetInfo()
    pool = rmm_pool()
    kept = cupy.get_default_memory_pool().total_bytes() + (pool.pool_size() if pool else 0)
    return min(int(total), int(free + kept))


def rmm_pool() -> Any:
    """Return RMM's pool, ``None`` if there is none."""
    rmm = sys.modules.get("rmm")
    if rmm is None:
        return None
    resource = rmm.mr.get_current_device_resource()
    while resource is not None and not isinstance(resource, rmm.mr.PoolMemoryResource):
        resource = getattr(resource, "upstream_mr", None)
    return resource


def host() -> str:
    """Return the name of this host and its current boot."""
    return f"{socket.gethostname()} {Path('/proc/sys/kernel/random/boot_id').read_text()}"
