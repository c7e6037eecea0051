"""What workers do with windows of a client; the client calls these functions on them."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from mmap import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_dgpu.batches.windows.place import HEADER, NAME, SLOTS, Place

if TYPE_CHECKING:
    from distributed import Worker

IDLE = 60.0
"""Seconds after which a worker lets go of a window that nobody uses: its client may be dead."""

EXTENSION = "dgpu-windows"

Array = Any
Key = Any


class Mapped:
    """A window in the memory of this process, and blocks that arrive through it.

    Raises
    ------
    OSError
        If there is no such window, for example because its client is on another host.
    """

    def __init__(self, place: Place, *, on_gpu: bool) -> None:
        if not os.readlink(place.path).startswith(f"/memfd:{NAME}"):
            raise OSError(f"expected a window, got {place.path}")
        file = os.open(place.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            memory = mmap(file, HEADER + SLOTS * place.slot_bytes)
        finally:
            os.close(file)
        if memory[: len(place.token)] != place.token:
            raise OSError(f"expected the window of another process, got {place.path}")
        self.slots = place.slots(memory)
        self.arriving: dict[Key, Array] = {}
        self.on_gpu = on_gpu
        self.last_use = 0.0
        if on_gpu:
            from cupy.cuda import Stream, runtime

            runtime.hostRegister(self.slots[0].ctypes.data, SLOTS * place.slot_bytes, 0)
            self.stream = Stream(non_blocking=True)

    def begin(self, key: Key, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return the block of a key, which is allocated at its first piece."""
        if key not in self.arriving:
            if self.on_gpu:
                import cupy

                with self.stream:
                    self.arriving[key] = cupy.empty(shape, dtype)
            else:
                self.arriving[key] = np.empty(shape, dtype)
        return self.arriving[key]

    def take(self, block: Array, start: int, slot: int, nbytes: int) -> None:
        """Copy a piece into a block."""
        source = self.slots[slot][:nbytes]
        if not self.on_gpu:
            block.reshape(-1).view(np.uint8)[start : start + nbytes] = source
            return
        from cupy.cuda import runtime

        to, stream = block.data.ptr + start, self.stream
        runtime.memcpyAsync(to, source.ctypes.data, nbytes, runtime.memcpyHostToDevice, stream.ptr)
        stream.synchronize()

    def give(self, block: Array, start: int, slot: int, nbytes: int) -> None:
        """Copy a piece of a block to a slot, after what CuPy's current stream does with it."""
        target = self.slots[slot][:nbytes]
        if isinstance(block, np.ndarray):
            target[:] = block.reshape(-1).view(np.uint8)[start : start + nbytes]
            return
        from cupy.cuda import get_current_stream, runtime

        stream, source = get_current_stream(), block.data.ptr + start
        runtime.memcpyAsync(
            target.ctypes.data, source, nbytes, runtime.memcpyDeviceToHost, stream.ptr
        )
        stream.synchronize()

    def close(self) -> None:
        """Unpin the window and let go of it, and of blocks that are not complete."""
        if self.on_gpu and self.slots:
            from cupy.cuda import runtime

            self.stream.synchronize()
            runtime.hostUnregister(self.slots[0].ctypes.data)
        self.slots, self.arriving = [], {}


class Windows:
    """The windows that a worker has mapped."""

    def __init__(self) -> None:
        self.mapped: dict[Place, Mapped] = {}

    def open(self, place: Place, *, on_gpu: bool) -> None:
        """Map a window."""
        self.mapped[place] = Mapped(place, on_gpu=on_gpu)
        self._used(place)

    def use(self, place: Place) -> Mapped:
        """Return a window that is open."""
        self._used(place)
        return self.mapped[place]

    def let_go(self, place: Place) -> None:
        """Let go of a window, if it is open."""
        mapped = self.mapped.pop(place, None)
        if mapped is not None:
            mapped.close()

    def close(self) -> None:
        """Let go of all windows; Dask calls this when the worker closes."""
        for place in list(self.mapped):
            self.let_go(place)

    def _used(self, place: Place) -> None:
        loop, mapped = asyncio.get_running_loop(), self.mapped[place]
        if not mapped.last_use:
            loop.call_later(IDLE, self._close_idle, place)
        mapped.last_use = loop.time()

    def _close_idle(self, place: Place) -> None:
        if (mapped := self.mapped.get(place)) is None:
            return
        loop = asyncio.get_running_loop()
        rest = mapped.last_use + IDLE - loop.time()
        if rest > 0:
            loop.call_later(rest, self._close_idle, place)
        else:
            self.let_go(place)


def _windows(worker: Worker) -> Windows:
    found: Windows = worker.extensions.setdefault(EXTENSION, Windows())
    return found


async def opened(place: Place, on_gpu: bool, *, dask_worker: Worker) -> bool:
    """Map a window; return whether it is on this host."""
    if not Path(place.path).is_symlink():
        return False
    try:
        _windows(dask_worker).open(place, on_gpu=on_gpu)
    except OSError:
        return False
    return True


async def closed(place: Place, *, dask_worker: Worker) -> None:
    """Let go of a window."""
    _windows(dask_worker).let_go(place)


async def taken(
    place: Place,
    slot: int,
    nbytes: int,
    key: Key,
    kind: tuple[tuple[int, ...], np.dtype[Any]],
    start: int,
    *,
    dask_worker: Worker,
) -> None:
    """Copy a piece of a block from a slot."""
    mapped = _windows(dask_worker).use(place)
    await _in_thread(mapped.take, mapped.begin(key, *kind), start, slot, nbytes)


async def kept(place: Place, *, dask_worker: Worker) -> dict[Key, int]:
    """Make the blocks that have arrived data of the worker; return their bytes."""
    mapped = _windows(dask_worker).use(place)
    blocks, mapped.arriving = mapped.arriving, {}
    nbytes: dict[Key, int] = dask_worker.update_data(blocks)["nbytes"]
    return nbytes


async def kind(key: Key, *, dask_worker: Worker) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
    """Return shape and dtype of a block; None if it is no array in C order or not here."""
    block: Any = dask_worker.data.get(key)
    is_array = isinstance(block, np.ndarray) or hasattr(block, "__cuda_array_interface__")
    return (block.shape, block.dtype) if is_array and block.flags.c_contiguous else None


async def given(
    place: Place, slot: int, nbytes: int, key: Key, start: int, *, dask_worker: Worker
) -> None:
    """Copy a piece of a block to a slot."""
    mapped = _windows(dask_worker).use(place)
    await _in_thread(mapped.give, dask_worker.data[key], start, slot, nbytes)


async def _in_thread(function: Any, *arguments: Any) -> None:
    await asyncio.get_running_loop().run_in_executor(None, partial(function, *arguments))
