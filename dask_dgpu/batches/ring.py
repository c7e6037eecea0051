"""Windows, memory shared by two processes: a ring of slots through which arrays go in pieces."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import prod
from mmap import PAGESIZE, mmap
from typing import Any

import numpy as np

NAME = "dask-dgpu"
SLOTS = 8
HEADER = PAGESIZE
"""Bytes before the slots: a token, the states of slots, and whether a process has stopped."""
LINE = 8
"""States are so many numbers apart: in cache lines of their own."""

NAP = 5e-5, 4e-4
"""Seconds between looks at the state of a slot, at first and at most: each needs the GIL."""
PATIENCE = 60.0
"""Seconds after which a process gives up the other, which may be dead."""

Piece = tuple[Any, ...]
"""The index of a part of an array."""


class StoppedError(OSError):
    """The other process has given up, or is gone."""


@dataclass(frozen=True)
class Place:
    """Where another process finds a window: one of the files of a ``process``."""

    process: int
    file: int
    token: bytes
    slot_bytes: int

    @property
    def path(self) -> str:
        """The path of the file, on the same host."""
        return f"/proc/{self.process}/fd/{self.file}"

    @property
    def is_there(self) -> bool:
        """Whether there is a window, maybe another one."""
        return os.path.islink(self.path) and os.readlink(self.path).startswith(f"/memfd:{NAME}")


class Ring:
    """Slots that one process fills and another empties, in turn; either may use several threads.

    Pieces have numbers from 0 on. A slot has a state: twice the number of pieces that have gone
    through it, and one more while it is full. So a thread knows that a slot is ready for its piece,
    and not for one before or after (D. Vyukov, "Bounded MPMC queue", 1024cores).
    """

    def __init__(self, memory: mmap, slot_bytes: int) -> None:
        numbers = np.frombuffer(memory, np.uint64, LINE * (SLOTS + 1), HEADER // 2)[::LINE]
        self._states, self._stopped = numbers[:SLOTS], numbers[SLOTS:]
        slots = np.frombuffer(memory, np.uint8, SLOTS * slot_bytes, HEADER)
        self.slots = slots.reshape(SLOTS, slot_bytes)

    def restart(self) -> None:
        """Forget what was sent; both processes must be done with it."""
        self._states[:] = self._stopped[:] = 0

    def stop(self) -> None:
        """Let all threads of both processes give up, until the ring starts again."""
        self._stopped[:] = 1

    def close(self) -> None:
        """Let go of the memory, also if frames of an error keep this object."""
        self._states, self._stopped = self._states.copy(), self._stopped.copy()
        self.slots = self.slots[:, :0].copy()

    def move(
        self,
        arrays: Sequence[Any],
        *,
        sends: bool,
        first: int = 0,
        step: int = 1,
        stream: Any = None,
    ) -> None:
        """Send arrays, or receive their elements: every ``step``-th piece, from the ``first`` on.

        Arrays of a device are copied on a CUDA ``stream``, by default CuPy's current one. After an
        error all threads of both processes give up.
        """
        most = self.slots.shape[1]
        indices = ((x, index) for x in arrays for index in pieces(x.shape, x.itemsize, most))
        try:
            for number, (array, index) in islice(enumerate(indices), first, None, step):
                turn, at = divmod(number, SLOTS)
                ready = 2 * turn + (not sends)
                self._wait(at, ready)
                part = array[index]
                slot = self.slots[at, : part.nbytes].view(part.dtype).reshape(part.shape)
                _copy(*((slot, part) if sends else (part, slot)), stream)
                self._states[at] = ready + 1
        except BaseException:
            self.stop()
            raise

    def _wait(self, slot: int, ready: int) -> None:
        """Wait until a slot is in a state."""
        late, (nap, longest) = time.monotonic() + PATIENCE, NAP
        while self._states[slot] != ready:
            if self._stopped[0] or time.monotonic() > late:
                raise StoppedError("the other end of a window has stopped")
            time.sleep(nap)
            nap = min(2 * nap, longest)


class Window:
    """A window of this process; an ``OSError`` if the system has none."""

    def __init__(self, slot_bytes: int) -> None:
        if not hasattr(os, "memfd_create"):
            raise OSError("expected memfd_create, which only Linux has")
        self._file = os.memfd_create(NAME)
        try:
            os.posix_fallocate(self._file, 0, HEADER + SLOTS * slot_bytes)
            memory = mmap(self._file, HEADER + SLOTS * slot_bytes)
        except OSError:
            os.close(self._file)
            raise
        token = os.urandom(16)
        memory[: len(token)] = token
        self.place = Place(os.getpid(), self._file, token, slot_bytes)
        self.ring = Ring(memory, slot_bytes)

    def close(self) -> None:
        """Free the memory once no process maps it."""
        self.ring.close()
        os.close(self._file)


def mapped(place: Place) -> Ring:
    """Map a window; an ``OSError`` if it is not there, as one of another host."""
    if not place.is_there:
        raise OSError(f"expected a window, got {place.path}")
    file = os.open(place.path, os.O_RDWR | os.O_CLOEXEC)
    try:
        memory = mmap(file, HEADER + SLOTS * place.slot_bytes)
    finally:
        os.close(file)
    if memory[: len(place.token)] != place.token:
        raise OSError(f"expected the window of another process, got {place.path}")
    return Ring(memory, place.slot_bytes)


def pieces(shape: tuple[int, ...], itemsize: int, most: int) -> Iterator[Piece]:
    """Yield the indices of parts of an array of at most some bytes, in C order.

    A single element is never cut.
    """
    row = itemsize * prod(shape[1:])
    if not shape or shape[0] * row <= most:
        yield (...,)
    elif row <= most or len(shape) == 1:
        rows = max(1, most // row)
        for lo in range(0, shape[0], rows):
            yield slice(lo, lo + rows), ...
    else:
        for i in range(shape[0]):
            for index in pieces(shape[1:], itemsize, most):
                yield i, *index


def _copy(target: Any, source: Any, stream: Any) -> None:
    """Copy a piece; one to or from a device on a stream, and wait for it."""
    if isinstance(target, np.ndarray) and isinstance(source, np.ndarray):
        np.copyto(target, source)
    elif target.nbytes:
        import cupy
        from cupy.cuda import runtime

        stream = stream or cupy.cuda.get_current_stream()
        source = source if isinstance(source, np.ndarray) else cupy.ascontiguousarray(source)
        to, from_ = (
            each.ctypes.data if isinstance(each, np.ndarray) else each.data.ptr
            for each in (target, source)
        )
        runtime.memcpyAsync(to, from_, target.nbytes, runtime.memcpyDefault, stream.ptr)
        stream.synchronize()
