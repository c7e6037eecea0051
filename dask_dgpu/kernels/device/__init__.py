"""A device as rank programs see it: memory, and two lanes of work.

Kernels run on the *compute* lane; the *transfer* lane packs, exchanges and unpacks messages.
On a host both lanes are the calling thread. On a GPU each is a stream for the life of the
device, and events order them, never the host.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from dask_dgpu.kernels.device.sequences import Sequences

Array = Any
Mark = Any
T = TypeVar("T")


class Device(Protocol):
    """The device of a rank program. ``kind`` is ``"cpu"`` or ``"cuda"``.

    A function that can compute several blocks at once gets up to ``batch``. ``sequences`` are
    recorded launches, ``None`` on a device that records none.
    """

    kind: str
    batch: int
    sequences: Sequences | None

    def empty(self, shape: tuple[int, ...] | int, dtype: str) -> Array:
        """Allocate uninitialised memory."""

    def zeros(self, shape: tuple[int, ...] | int, dtype: str) -> Array:
        """Allocate zeroed memory."""

    def workspace(self, name: str, size: int, dtype: str) -> Array:
        """Return flat uninitialised memory, if possible that of the last program.

        A device runs one program at a time, so each name has one user at a time.
        """

    def constant(self, value: Array) -> Array:
        """Return a NumPy array without axes on the device, read-only, for either lane."""

    def owns(self, array: Array) -> bool:
        """Whether an array is writable and its memory invisible to other libraries."""

    def again(self, known: dict[Hashable, Any], key: Hashable, work: Callable[[], T]) -> T:
        """Repeat work in the same memory on the current lane, if possible as a recording.

        Recordings are ``known`` as long as the memory. Work with the same key has the same launches
        and result. It issues kernels and nothing else, and may be skipped if the key is known.
        """

    def each(self, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """Apply a function to independent items on the compute lane.

        The lane then waits for kernels that the function launched on other streams.
        """

    def join(self) -> None:
        """Let each lane wait for the work of the other so far; the host does not wait."""

    def computing(self) -> AbstractContextManager[Any]:
        """Run the work inside on the compute lane."""

    def transferring(self) -> AbstractContextManager[Any]:
        """Run the work inside on the transfer lane."""

    def named(self, name: str) -> AbstractContextManager[Any]:
        """Name the work inside in a profiler of the device."""

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

    def hand_over(self, block: Array) -> Array:
        """Return a finished block, in the same memory, for Dask tasks.

        A task may free its last view while still reading it: the memory is reused only after
        the work that tasks have begun.
        """

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

    def to_host(self, block: Array) -> Array:
        """Return a block as a NumPy array."""
