"""A device as rank programs see it: memory, and two lanes of work.

Kernels run on the *compute* lane; the *transfer* lane packs, exchanges and unpacks messages.
On a host both lanes are the calling thread. On a GPU each is a stream for the life of the
device, and events order them, never the host.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import numpy as np

from dask_dgpu.kernels.device.host import KEPT_BYTES, return_memory
from dask_dgpu.kernels.device.sequences import Sequences

Array = Any
Mark = Any
T = TypeVar("T")

NOTHING = nullcontext()


class Device:
    """The device of a rank program: a host, unless a subclass says otherwise.

    ``kind`` is ``"cpu"`` or ``"cuda"``.
    A function that can compute several blocks at once gets up to ``batch``. ``sequences`` are
    recorded launches, ``None`` on a device that records none.
    """

    kind: str = "cpu"
    batch: int = 1
    sequences: Sequences | None = None

    def empty(self, shape: tuple[int, ...] | int, dtype: str) -> Array:
        """Allocate uninitialised memory."""
        return np.empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...] | int, dtype: str) -> Array:
        """Allocate zeroed memory."""
        return np.zeros(shape, dtype)

    def workspace(self, name: str, size: int, dtype: str) -> Array:
        """Return flat uninitialised memory, if possible that of the last program.

        A device runs one program at a time, so each name has one user at a time.
        """

    def constant(self, value: Array) -> Array:
        """Return a NumPy array without axes on the device, read-only, for either lane."""
        return value

    def owns(self, array: Array) -> bool:
        """Whether an array is writable and its memory invisible to other libraries."""
        return type(array) is np.ndarray and array.flags.owndata and array.flags.writeable

    def again(self, known: dict[Hashable, Any], key: Hashable, work: Callable[[], T]) -> T:
        """Repeat work in the same memory on the current lane, if possible as a recording.

        Recordings are ``known`` as long as the memory. Work with the same key has the same launches
        and result. It issues kernels and nothing else, and may be skipped if the key is known.
        """
        return work()

    def each(self, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """Apply a function to independent items on the compute lane.

        The lane then waits for kernels that the function launched on other streams.
        """
        return [function(item) for item in items]  # map would stop at a StopIteration

    def join(self) -> None:
        """Let each lane wait for the work of the other so far; the host does not wait."""

    def computing(self) -> AbstractContextManager[Any]:
        """Run the work inside on the compute lane."""
        return NOTHING

    def transferring(self) -> AbstractContextManager[Any]:
        """Run the work inside on the transfer lane."""
        return NOTHING

    def named(self, name: str) -> AbstractContextManager[Any]:
        """Name the work inside in a profiler of the device."""
        return NOTHING

    def begin(self) -> None:
        """Let all lanes wait for all other work on the device so far.

        That work computed the blocks of the program.
        """

    def mark(self) -> Mark:
        """Mark the end of the current lane's work so far."""

    def after(self, mark: Mark) -> None:
        """Let the current lane wait for a mark; the host does not wait."""

    def clock(self) -> Any:
        """Return a new clock of the compute lane; ``None`` on a host, whose own is as good."""

    def watch(self) -> Any:
        """Return a new record of the waits of the compute lane; ``None`` on a host."""

    def borrow(self, block: Array) -> Array:
        """Return a block of a Dask task, in the same memory, for work on the lanes.

        A block is an array or contains arrays. After its last view is gone, its memory is
        kept until all lanes have finished their work so far: the owner may give it to work
        that does not wait for the lanes. The host does not wait.
        """
        return block

    def hand_over(self, block: Array) -> Array:
        """Return a finished block, in the same memory, for Dask tasks.

        A task may free its last view while still reading it: the memory is reused only after
        the work that tasks have begun.
        """
        return block

    def synchronize(self) -> None:
        """Let the host wait for all lanes."""

    def recover(self) -> None:
        """Prepare the device for the next program after a failure.

        A cancelled transfer may still write: call this while the arrays of the program exist.
        """

    def release(self) -> None:
        """Free memory that is kept for the next program, while none runs."""

    def to_device(self, block: Array) -> Array:
        """Return a block in this device's memory; no copy if it is there already."""
        return np.asarray(block)

    def to_host(self, block: Array) -> Array:
        """Return a block as a NumPy array."""
        return np.asarray(block)


class HostDevice(Device):
    """NumPy in the calling thread, or in ``threads`` for independent work."""

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads
        self._kept: dict[str, Array] = {}

    def workspace(self, name: str, size: int, dtype: str) -> Array:
        nbytes = size * np.dtype(dtype).itemsize
        kept = self._kept.get(name)
        if kept is None or len(kept) < nbytes:
            # new memory costs a page fault every 4 KiB, as much as a copy
            kept = np.empty(nbytes, np.uint8)
            if nbytes <= KEPT_BYTES:
                self._kept[name] = kept
        return kept[:nbytes].view(dtype)

    def each(self, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        work = list(items)
        if self._threads == 1 or len(work) < 2:
            return super().each(function, work)
        with ThreadPoolExecutor(min(self._threads, len(work))) as pool:
            under_way = [pool.submit(function, item) for item in work]
            try:
                return [each.result() for each in under_way]
            finally:
                for each in under_way:
                    each.cancel()  # if one fails, those that have not started

    def recover(self) -> None:
        self._kept.clear()

    def release(self) -> None:
        self._kept.clear()
        return_memory()
