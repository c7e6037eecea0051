"""A device as rank programs see it: memory, two lanes of work, and products.

The *compute* lane is where products run, the *transfer* lane where pieces are
packed, exchanged and unpacked. On a host both are the calling thread. On a GPU
each is a stream, made once, and they are ordered by events, never by the host.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from dask_dgpu.kernels.pack import Pieces
from dask_dgpu.kernels.stencil import Region, Taps

Array = Any
Mark = Any
T = TypeVar("T")


class Device(Protocol):
    """What a rank program needs of the device it runs on."""

    kind: str

    def empty(self, shape: tuple[int, ...] | int, dtype: str) -> Array:
        """Return uninitialised memory on the device."""

    def zeros(self, shape: tuple[int, ...] | int, dtype: str) -> Array:
        """Return zeroed memory on the device."""

    def workspace(self, name: str, size: int, dtype: str) -> Array:
        """Return uninitialised flat memory; that of the last program, if it is large enough.

        Programs run one after the other on a device, so each name is used by one
        at a time.
        """

    def constant(self, value: Array) -> Array:
        """Return a NumPy array of no axes on the device, for either lane; nobody writes to it."""

    def owns(self, array: Array) -> bool:
        """Whether an array may be written to, and no other library can see its memory."""

    def panel_dtype(self, dtype: str) -> str:
        """Return the dtype in which factors of a product of ``dtype`` are kept."""

    def accumulate(self, out: Array, a: Array, b: Array) -> None:
        """Add the product ``a @ b`` to ``out``."""

    def copy_pieces(self, *batches: Pieces) -> None:
        """Copy pieces of arrays of one dtype, on a GPU all of them in one launch."""

    def sweeps(
        self,
        source: Array,
        target: Array,
        taps: Taps,
        regions: Sequence[Region],
        added: Array | None = None,
        change: Array | None = None,
    ) -> bool:
        """Make regions of two arrays from each other in turn; as in ``stencil.sweeps_host``.

        Returns whether ``target`` is what was made last, which depends on the number of
        regions, ``taps`` and the dtype only.
        """

    def sweeps_at_once(self, taps: Taps) -> int:
        """Return how many sweeps are one pass, which leaves ``source`` as it is."""

    def again(self, known: dict[Hashable, Any], key: Hashable, work: Callable[[], T]) -> T:
        """Do work on the current lane that may have been done before, in the same memory.

        Parameters
        ----------
        known : dict
            Where the device remembers work; it lives as long as the memory.
        key : hashable
            Work of the same key is the same launches, and returns the same.
        work : callable
            Issues kernels and nothing else; it need not be called if ``key`` is known.
        """

    def each(self, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """Return what a function of independent items returns for each, on the compute lane.

        The lane goes on when kernels are over that the function has given the device elsewhere.
        """

    def join(self) -> None:
        """Let each lane wait for what the other was given so far; not the host."""

    def computing(self) -> AbstractContextManager[Any]:
        """Work issued inside runs on the compute lane."""

    def transferring(self) -> AbstractContextManager[Any]:
        """Work issued inside runs on the transfer lane."""

    def named(self, name: str) -> AbstractContextManager[Any]:
        """Show what is issued inside under a name in a profiler of the device."""

    def begin(self) -> None:
        """Hold both lanes back until what other code gave the device so far is done.

        The blocks of a program come from there.
        """

    def mark(self) -> Mark:
        """Mark the end of what the current lane was given so far."""

    def after(self, mark: Mark) -> None:
        """Hold the current lane back until a mark is reached; not the host."""

    def borrow(self, block: Array) -> Array:
        """Return a block of others in the same memory, for work on the lanes.

        It may be an array, or what holds arrays on the way to a reduction. When the last view
        is gone, its memory goes back once both lanes are past what they were given so far:
        whoever made it may give it to somebody whose work is not ordered after ours. The host
        does not wait.
        """

    def hand_over(self, block: Array) -> Array:
        """Return a block in the same memory, for others, when both lanes are done with it.

        They may still be reading it when they let go of the last view of it: its memory is not
        given out again before what they have begun is over.
        """

    def synchronize(self) -> None:
        """Hold the host back until both lanes are empty."""

    def recover(self) -> None:
        """Make the device fit for the next program after one that failed.

        A transfer given up in its midst may still write where it was told to; call
        this while the program's arrays are still referred to.
        """

    def to_device(self, block: Array) -> Array:
        """Return a block in this device's memory, itself if it is there already."""

    def to_host(self, block: Array) -> Array:
        """Return a block as a NumPy array."""
