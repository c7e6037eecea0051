"""Windows as the client makes them, and the pieces of blocks that go through their slots."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from mmap import PAGESIZE, mmap
from typing import Any

import numpy as np

NAME = "dask-dgpu"
SLOTS = 3
HEADER = PAGESIZE
"""Bytes before the slots; a token is at the beginning."""


@dataclass(frozen=True)
class Place:
    """Where a process finds a window."""

    path: str
    token: bytes
    slot_bytes: int

    def slots(self, memory: mmap) -> list[Any]:
        """Return the slots as bytes."""
        found = np.frombuffer(memory, np.uint8, SLOTS * self.slot_bytes, HEADER)
        return list(found.reshape(SLOTS, self.slot_bytes))


class Window:
    """A window of this process.

    Raises
    ------
    OSError
        If the system has none.
    """

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
        self.place = Place(f"/proc/{os.getpid()}/fd/{self._file}", token, slot_bytes)
        self.slots = self.place.slots(memory)

    def close(self) -> None:
        """Free the memory once no process maps it."""
        self.slots = []
        os.close(self._file)


def pieces(array: Any, most: int) -> Iterator[tuple[int, Any]]:
    """Yield parts of an array of at most some bytes, and where they begin in its bytes in C order.

    Parts are views; a single element is never cut.
    """
    if array.nbytes <= most or not array.ndim:
        yield 0, array
        return
    row = array[:1].nbytes
    if row <= most or array.ndim == 1:
        rows = max(1, most // row)
        for lo in range(0, len(array), rows):
            yield lo * row, array[lo : lo + rows]
        return
    for at, part in enumerate(array):
        for start, piece in pieces(part, most):
            yield at * row + start, piece


def as_piece(slot: Any, like: Any) -> Any:
    """Return the first bytes of a slot as an array like another."""
    return slot[: like.nbytes].view(like.dtype).reshape(like.shape)
