"""What workers do with windows of a client; the client calls these functions on them."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_dgpu.batches.windows import ring
from dask_dgpu.batches.windows.ring import Kind, Place, StoppedError, as_piece

if TYPE_CHECKING:
    from distributed import Worker

LOOK = 60.0
"""Seconds between looks whether the client still has a window: it may be dead."""

EXTENSION = "dgpu-windows"

Array = Any
Key = Any


class Mapped:
    """A window in the memory of this process; an ``OSError`` if it is not there."""

    def __init__(self, place: Place, *, on_gpu: bool) -> None:
        self.ring = ring.opened(place)
        if on_gpu:
            from cupy.cuda import Stream, runtime

            slots, self.stream = self.ring.slots, Stream(non_blocking=True)
            with suppress(runtime.CUDARuntimeError):  # copies are only slower
                runtime.hostRegister(slots.ctypes.data, slots.nbytes, 0)
                unpin = weakref.finalize(self, runtime.hostUnregister, slots.ctypes.data)
                unpin.atexit = False  # the process and its pinned memory end together

    def take(self, kind: Kind, on_gpu: bool, numbers: Iterator[int]) -> Array:
        """Return a block that the client sends, in pieces of the next numbers."""
        if on_gpu:
            import cupy

            # not on a stream that ends with the window: blocks may outlive it
            block = cupy.empty(kind.shape, kind.dtype)
            self.stream.wait_event(cupy.cuda.get_current_stream().record())
        else:
            block = np.empty(kind.shape, kind.dtype)
        for index in kind.pieces(self.ring.slot_bytes):
            self.ring.empty(next(numbers), partial(self._put, block[index]))
        return block

    def give(self, block: Array) -> None:
        """Send a block, after what CuPy's current stream does with it."""
        found = Kind(block.shape, block.dtype).pieces(self.ring.slot_bytes)
        for number, index in enumerate(found):
            self.ring.fill(number, partial(_get, block[index]))

    def _put(self, part: Array, slot: Array) -> None:
        source = as_piece(slot, part)
        if isinstance(part, np.ndarray):
            part[...] = source
        elif part.nbytes:
            from cupy.cuda import runtime

            way = runtime.memcpyHostToDevice
            _copy(part.data.ptr, source.ctypes.data, part.nbytes, way, self.stream)


def _get(part: Array, slot: Array) -> None:
    target = as_piece(slot, part)
    if isinstance(part, np.ndarray):
        target[...] = part
    elif part.nbytes:
        import cupy
        from cupy.cuda import get_current_stream, runtime

        part, way = cupy.ascontiguousarray(part), runtime.memcpyDeviceToHost
        _copy(target.ctypes.data, part.data.ptr, part.nbytes, way, get_current_stream())


def _copy(target: int, source: int, nbytes: int, way: int, stream: Any) -> None:
    """Copy memory on a stream, and wait for it."""
    from cupy.cuda import runtime

    runtime.memcpyAsync(target, source, nbytes, way, stream.ptr)
    stream.synchronize()


class Windows:
    """The windows that a worker has mapped."""

    def __init__(self) -> None:
        self.mapped: dict[Place, Mapped] = {}

    def open(self, place: Place, *, on_gpu: bool) -> None:
        """Map a window."""
        self.mapped[place] = Mapped(place, on_gpu=on_gpu)
        asyncio.get_running_loop().call_later(LOOK, self._look, place)

    async def use(self, place: Place, function: Any, *arguments: Any) -> Any:
        """Call a function of a window in a thread."""
        mapped, loop = self.mapped.get(place), asyncio.get_running_loop()
        if mapped is None:  # the worker has started again
            raise StoppedError("a worker has let go of a window")
        return await loop.run_in_executor(None, partial(function, mapped, *arguments))

    def let_go(self, place: Place) -> None:
        """Let go of a window, if it is open; what goes through it ends, and then it is unpinned."""
        if (mapped := self.mapped.pop(place, None)) is not None:
            mapped.ring.stop()

    def close(self) -> None:
        """Let go of all windows; Dask calls this when the worker closes."""
        for place in list(self.mapped):
            self.let_go(place)

    def _look(self, place: Place) -> None:
        """Let go of a window that its client no longer has."""
        if place not in self.mapped:
            return
        try:
            place.check()
            asyncio.get_running_loop().call_later(LOOK, self._look, place)
        except OSError:
            self.let_go(place)


def _windows(worker: Worker) -> Windows:
    found: Windows = worker.extensions.setdefault(EXTENSION, Windows())
    return found


async def opened(place: Place, on_gpu: bool, *, dask_worker: Worker) -> bool:
    """Map a window; return whether it is on this host."""
    try:
        _windows(dask_worker).open(place, on_gpu=on_gpu)
    except OSError:
        return False
    return True


async def closed(place: Place, *, dask_worker: Worker) -> None:
    """Let go of a window."""
    _windows(dask_worker).let_go(place)


async def taken(
    place: Place, blocks: Sequence[tuple[Key, Kind]], on_gpu: bool, *, dask_worker: Worker
) -> dict[Key, int]:
    """Make blocks that the client sends data of the worker; return their bytes."""

    def take(mapped: Mapped) -> dict[Key, Array]:
        numbers = count()
        return {key: mapped.take(kind, on_gpu, numbers) for key, kind in blocks}

    arrived = await _windows(dask_worker).use(place, take)
    nbytes: dict[Key, int] = dask_worker.update_data(arrived)["nbytes"]
    return nbytes


async def kind_of(key: Key, *, dask_worker: Worker) -> Kind | None:
    """Return what a block is; None if it is no array, or not here."""
    block: Any = dask_worker.data.get(key)
    is_array = isinstance(block, np.ndarray) or hasattr(block, "__cuda_array_interface__")
    return Kind(block.shape, block.dtype) if is_array and not block.dtype.hasobject else None


async def given(place: Place, key: Key, *, dask_worker: Worker) -> None:
    """Send a block to the client."""
    await _windows(dask_worker).use(place, Mapped.give, dask_worker.data[key])
