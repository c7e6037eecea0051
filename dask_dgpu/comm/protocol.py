"""What a communicator can do; the transports beside this file implement it.

A communicator joins ``size`` ranks. Every method except :meth:`Comm.exchange`,
:meth:`Comm.abort` and :meth:`Comm.close` is collective: all ranks call it, in
the same order. Buffers are C-contiguous NumPy or CuPy arrays of any dtype that
Dask arrays have (bool, integers, floats, complex), of any shape, also empty.
A call returns at once with a :class:`Work`; until its ``wait`` has returned the
buffers belong to the communicator. The buffers of one call do not overlap.

Every call but abort and close raises
:class:`~dask_dgpu.errors.CommAbortedError` once the communicator was aborted or
closed, and ``ValueError`` for buffers or ranks that do not fit.
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
        to wait; the host is not. It lasts until the other ranks come, unless the
        communicator was made with a time limit.

        Raises
        ------
        CommError
            When a peer is lost or a time limit passes; on a GPU a later call may
            be the first to raise.
        CommAbortedError
            When the communicator was aborted, from any thread.
        """

    def done(self) -> bool:
        """Whether ``wait`` would return (or raise) without blocking."""


class Window(Protocol):
    """Buffers of all ranks that any of them may read, without the owner's help.

    What MPI calls a window and its passive reads. No buffer in it may be written
    to or freed before every rank has closed it.
    """

    def get(self, peer: int, which: int, part: tuple[slice, ...], target: Buffer) -> None:
        """Copy a part of a rank's buffer; on a GPU on the caller's stream.

        Parameters
        ----------
        peer : int
            The rank that gave the buffer; it may be this one.
        which : int
            The position among the buffers that it gave.
        part : tuple of slice
            What is read of it.
        target : array
            Where it goes: of the shape of the part and the buffer's dtype, any strides.
        """

    def close(self) -> Work:
        """Say that this rank has read all it needs; collective.

        Returns
        -------
        Work
            Over when all ranks have read what they need. Then, and not before, the
            buffers may be written to or freed.
        """


class Comm(Protocol):
    """Ranks that can exchange buffers.

    Attributes
    ----------
    rank : int
        Which rank this is, from 0.
    size : int
        How many there are.
    """

    rank: int
    size: int

    def exchange(
        self,
        sends: Sequence[tuple[int, Buffer]],
        recvs: Sequence[tuple[int, Buffer]],
    ) -> Work:
        """Send and receive a batch of messages, point to point.

        Messages from one rank to another are matched in their order. Ranks that
        take no part do not call it.

        Parameters
        ----------
        sends, recvs : sequence of (int, array)
            The other rank, and what it is sent or where its message goes. Both sides
            give buffers of the same number of bytes. A message to oneself is
            allowed when the same batch receives it.

        Returns
        -------
        Work
            Of the whole batch.
        """

    def broadcast(self, buffer: Buffer, root: int) -> Work:
        """Fill ``buffer`` on every rank with that of ``root``.

        Parameters
        ----------
        buffer : array
            Of the same shape and dtype on every rank.
        root : int
            The rank whose buffer is sent.

        Returns
        -------
        Work
            Of the broadcast.
        """

    def all_gather(self, out: Buffer, part: Buffer) -> Work:
        """Concatenate the ranks' equal-sized ``part`` into ``out`` (flat).

        Parameters
        ----------
        out : array
            Of ``size`` times as many elements as ``part``, and its dtype.
        part : array
            What this rank gives.

        Returns
        -------
        Work
            Of the gathering.
        """

    def reduce_scatter(self, part: Buffer, whole: Buffer, op: Reduction = "sum") -> Work:
        """Reduce the ranks' ``whole`` and keep slice ``rank`` of it (flat, equal).

        Parameters
        ----------
        part : array
            Where this rank's slice of the result goes.
        whole : array
            What this rank gives: ``size`` times as many elements, of the same dtype.
        op : {"sum", "min", "max"}
            As in :meth:`all_reduce`.

        Returns
        -------
        Work
            Of the reduction.
        """

    def all_reduce(self, buffer: Buffer, op: Reduction = "sum") -> Work:
        """Reduce ``buffer`` over the ranks in place, the same bits on every rank.

        Parameters
        ----------
        buffer : array
            What this rank gives, and where the result goes.
        op : {"sum", "min", "max"}
            The sum of bool is "or". Complex numbers have no minimum and no maximum.

        Returns
        -------
        Work
            Of the reduction.
        """

    def all_to_all(
        self,
        out: Buffer,
        out_counts: Sequence[int],
        whole: Buffer,
        in_counts: Sequence[int],
    ) -> Work:
        """Send ``in_counts[q]`` elements of flat ``whole`` to each rank q.

        Parameters
        ----------
        out : array
            What comes, in the order of the ranks.
        out_counts : sequence of int
            How many elements come from each rank. Counts may be uneven and zero.
        whole : array
            What goes, in the order of the ranks; of the dtype of ``out``.
        in_counts : sequence of int
            How many elements go to each rank.

        Returns
        -------
        Work
            Of all messages.
        """

    def barrier(self) -> None:
        """Return when every rank has come here.

        Raises
        ------
        CommError
            When a peer is lost or a time limit passes.
        """

    def window(self, buffers: Sequence[Buffer]) -> Window | None:
        """Let all ranks read these buffers of each.

        Parameters
        ----------
        buffers : sequence of array
            What this rank gives: any number, of any shape, dtype and strides. What
            was written to them on the caller's stream so far is what others read.

        Returns
        -------
        Window or None
            ``None``, on every rank, where the transport, the hosts or the memory of
            any of them do not allow it.
        """

    def split(self, color: int | None, key: int) -> Comm | None:
        """Make one communicator of all ranks that pass the same ``color``.

        Parameters
        ----------
        color : int or None
            Which of the new communicators this rank joins; ``None`` is none.
        key : int
            Ranks are ordered by (``key``, old rank).

        Returns
        -------
        Comm or None
            The new communicator, which ends with this one at the latest; ``None`` for
            a rank that joins none.
        """

    def check(self) -> None:
        """Raise :class:`~dask_dgpu.errors.CommAbortedError` if it was aborted.

        On a GPU an abort lets the streams run on with what is in the buffers; a
        program whose result counts asks once more after its last synchronisation.
        """

    def abort(self, reason: str) -> None:
        """Make every pending and later call of this rank raise, children too.

        May be called from any thread; never blocks. The other ranks may learn
        of it by an error; over NCCL they do not, and must be aborted too.

        Parameters
        ----------
        reason : str
            Why; it is in the text of the errors. Only the first counts.
        """

    def close(self) -> None:
        """Release the transport, children too; never blocks, even if peers are gone.

        Call it when every work has been waited for, or to give up.
        """
