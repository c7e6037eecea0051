"""What a communicator can do; the transports beside this file implement it.

A communicator joins ``size`` ranks. Every method except :meth:`Comm.exchange`,
:meth:`Comm.abort` and :meth:`Comm.close` is collective: all ranks call it, in
the same order. Buffers are C-contiguous NumPy or CuPy arrays of any dtype that
Dask arrays have (bool, integers, floats, complex), of any shape, also empty.
A call returns at once with a :class:`Work`; until its ``wait`` has returned the
buffers belong to the communicator. The buffers of one call do not overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

Buffer = Any
Reduction = Literal["sum", "min", "max"]


class Work(Protocol):
    """A transfer under way."""

    def wait(self) -> None:
        """Return when the buffers may be used again.

        On a CPU the data is there. On a GPU the caller's current stream is made
        to wait; the host is not. Raises :class:`~dask_dgpu.errors.CommError`
        when a peer is lost, the time limit passes, or the communicator is
        aborted (from any thread) meanwhile: it never blocks for ever.
        """

    def done(self) -> bool:
        """Whether ``wait`` would return (or raise) without blocking."""


class Comm(Protocol):
    """Ranks that can exchange buffers."""

    rank: int
    size: int

    def exchange(
        self,
        sends: Sequence[tuple[int, Buffer]],
        recvs: Sequence[tuple[int, Buffer]],
    ) -> Work:
        """Send and receive a batch of messages, point to point.

        Messages from one rank to another are matched in their order. A message
        to oneself is allowed when the same batch receives it. Ranks that take
        no part do not call it.
        """

    def broadcast(self, buffer: Buffer, root: int) -> Work:
        """Fill ``buffer`` on every rank with that of ``root``."""

    def all_gather(self, out: Buffer, part: Buffer) -> Work:
        """Concatenate the ranks' equal-sized ``part`` into ``out`` (flat)."""

    def reduce_scatter(self, part: Buffer, whole: Buffer, op: Reduction = "sum") -> Work:
        """Reduce the ranks' ``whole`` and keep slice ``rank`` of it (flat, equal)."""

    def all_reduce(self, buffer: Buffer, op: Reduction = "sum") -> Work:
        """Reduce ``buffer`` over the ranks in place, the same bits on every rank.

        The sum of bool is "or". Complex numbers have no minimum and no maximum.
        """

    def all_to_all(
        self,
        out: Buffer,
        out_counts: Sequence[int],
        whole: Buffer,
        in_counts: Sequence[int],
    ) -> Work:
        """Send ``in_counts[q]`` elements of flat ``whole`` to each rank q.

        ``out`` receives ``out_counts[q]`` elements from each q, in rank order.
        Counts may be uneven and zero; both buffers have the same dtype.
        """

    def barrier(self) -> None:
        """Return when every rank has come here."""

    def split(self, color: int | None, key: int) -> Comm | None:
        """Make one communicator of all ranks that pass the same ``color``.

        Ranks are ordered by (``key``, old rank). ``None`` takes no part and
        gets ``None``.
        """

    def check(self) -> None:
        """Raise :class:`~dask_dgpu.errors.CommAbortedError` if it was aborted.

        On a GPU an abort lets the streams run on with what is in the buffers; a
        program whose result counts asks once more after its last synchronisation.
        """

    def abort(self, reason: str) -> None:
        """Make every pending and later call of this rank raise, children too.

        May be called from any thread; never blocks. The other ranks may learn
        of it by an error, or by their time limit.
        """

    def close(self) -> None:
        """Release the transport, children too; never blocks, even if peers are gone.

        Call it when every work has been waited for, or to give up.
        """
