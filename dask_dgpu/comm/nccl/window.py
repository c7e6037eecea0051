"""Reading a peer's memory on the same host: mapped once, copied by the copy engines.

A GPU's copy engines move data between the GPUs of one host while all its
multiprocessors compute, which NCCL's kernels would take a part of. What it needs
is the peer's allocation mapped into this process (CUDA IPC). Opening one takes
milliseconds, and a peer that frees an allocation which others have mapped is
undefined behaviour. So only memory of an RMM pool is offered: its few large
allocations live as long as their process, and are opened once.
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

from dask_dgpu.comm.buffers import check_peers
from dask_dgpu.comm.protocol import Buffer, Work
from dask_dgpu.comm.rendezvous import meet

if TYPE_CHECKING:
    from dask_dgpu.comm.nccl.communicator import NcclComm


class Place(NamedTuple):
    """Where a buffer is, for another process of the same host.

    ``allocation`` is a position among the handles that come with it, -1 for an empty
    buffer; ``offset`` and ``strides`` are in bytes.
    """

    allocation: int
    offset: int
    shape: Sequence[int]
    strides: Sequence[int]
    dtype: str


@dataclass(frozen=True)
class Offer:
    """What a rank tells of its buffers.

    Parameters
    ----------
    host : str
        Where they are: memory can be mapped within one host only, and one boot of it.
    handles : list of str
        CUDA's names of the allocations that hold them, in hexadecimal.
    places : list of Place or None
        Of the buffers; ``None`` if one of them can not be offered.
    """

    host: str
    handles: list[str]
    places: list[Place] | None


class Mappings:
    """Allocations of other processes that this one has mapped, until it is told to close them.

    Attributes
    ----------
    known : set of str
        The handles that all ranks have opened.
    refused : bool
        Whether one of them could not be opened by one of the ranks: then none is used.
    lock : Lock
        Held while a read is issued, and while everything is closed.
    """

    def __init__(self) -> None:
        self.known: set[str] = set()
        self.refused = False
        self.lock = threading.Lock()
        self._opened: dict[str, int] = {}
        self._told = 0

    def tell(self, comm: NcclComm, said: Any) -> list[Any]:
        """Say something to all ranks, and return what each said.

        It goes over the store: nothing is copied to or from the GPU, nor waits for it.
        """
        self._told += 1
        heard = meet(
            comm._store,
            f"window-{self._told}",
            json.dumps(said),
            rank=comm.rank,
            size=comm.size,
            limit=comm.limit,
            lifetime=comm._lifetime,
        )
        if self._told > 1:  # whoever came this far has heard what was said before
            comm._store.delete_key(f"window-{self._told - 1}/{comm.rank}")
        return [json.loads(text) for text in heard]

    def open(self, handles: Collection[str]) -> bool:
        """Map allocations that are not mapped yet; whether all of them could be."""
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
        """Unmap everything: while it is mapped, the memory of a dead process is not freed."""
        with self.lock:
            if self._opened:  # no thread may wait for a device while another records a graph
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
    if mappings.refused or comm.size == 1:
        return None
    said = mappings.tell(comm, asdict(offer(buffers)))
    offers = [Offer(**facts) for facts in said]
    if len({one.host for one in offers}) > 1 or any(one.places is None for one in offers):
        return None
    handles = {handle for one in offers for handle in one.handles}
    if not handles <= mappings.known:
        # every rank sees the same names, so all of them come to ask
        theirs = [one for rank, one in enumerate(offers) if rank != comm.rank]
        opened = mappings.open({handle for one in theirs for handle in one.handles})
        mappings.refused = not all(mappings.tell(comm, opened))
        if mappings.refused:
            return None
        mappings.known |= handles
    # no rank reads before the streams of all have come here, and with them what they give
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
    """Name the places of buffers for other processes."""
    handles: dict[str, int] = {}
    places = []
    for buffer in buffers:
        allocation, offset = -1, 0
        if buffer.size:
            found = _allocation(buffer.data.ptr) if pooled() else None
            if found is None:
                return Offer(host(), [], None)
            handle, offset = found
            allocation = handles.setdefault(handle, len(handles))
        places.append(Place(allocation, offset, buffer.shape, buffer.strides, buffer.dtype.str))
    return Offer(host(), list(handles), places)


def _allocation(pointer: int) -> tuple[str, int] | None:
    """Return the handle of the allocation that holds an address, and the offset in it."""
    from cuda.bindings import driver

    status, base, _size = driver.cuMemGetAddressRange(pointer)
    if status != driver.CUresult.CUDA_SUCCESS:
        return None
    try:
        return cupy.cuda.runtime.ipcGetMemHandle(pointer).hex(), pointer - int(base)
    except cupy.cuda.runtime.CUDARuntimeError:
        return None


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
    return _pool() is not None and "rmm" in getattr(cupy.cuda.get_allocator(), "__module__", "")


def obtainable() -> int:
    """Return the bytes of the device that this process has in pools, or could still get.

    What other processes hold of it is not among them.
    """
    free, total = cupy.cuda.runtime.memGetInfo()
    pool = _pool()
    kept = cupy.get_default_memory_pool().total_bytes() + (pool.pool_size() if pool else 0)
    return min(int(total), int(free + kept))


def _pool() -> Any:
    """Return RMM's pool, ``None`` if there is none."""
    rmm = sys.modules.get("rmm")
    if rmm is None:
        return None
    resource = rmm.mr.get_current_device_resource()
    while resource is not None and not isinstance(resource, rmm.mr.PoolMemoryResource):
        resource = getattr(resource, "upstream_mr", None)
    return resource


def host() -> str:
    """Name this host, and its present boot."""
    return f"{socket.gethostname()} {Path('/proc/sys/kernel/random/boot_id').read_text()}"
