"""The interface of all communicators; one module beside this file implements each transport.

A communicator joins ``size`` ranks. Every method except :meth:`Comm.exchange`,
:meth:`Comm.abort` and :meth:`Comm.close` is collective: all ranks call it, in the same
order. Buffers are C-contiguous NumPy or CuPy arrays of any dtype that Dask arrays have
(bool, integers, floats, complex), of any shape, also empty. A call returns at once with a
:class:`Work`; until its ``wait`` has returned, the buffers belong to the communicator. The
buffers of one call do not overlap.

Every call except abort and close raises :class:`~dask_dgpu.errors.CommAbortedError` once the
communicator was aborted or closed, and ``ValueError`` for unsuitable buffers or ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

Buffer = Any
Counts = Sequence[int]
Messages = Sequence[tuple[int, Buffer]]
"""The other rank and the buffer of each message."""
Reduction = Literal["sum", "min", "max"]


class Work(Protocol):
    """A transfer in progress."""

    def wait(self) -> None:
        """Return when the buffers may be used again.

        On a CPU the data has arrived. On a GPU the caller's current stream waits for it; the
        host does not. It waits for the other ranks without a limit, unless the communicator
        has a time limit.

        Raises
        ------
        CommError
            If a peer is lost or the time limit passes; on a GPU a later call may be the
            first to raise.
        CommAbortedError
            If the communicator was aborted, from any thread.
        """

    def done(self) -> bool:
        """Return whether ``wait`` would return (or raise) without blocking."""


class Window(Protocol):
    """Buffers of all ranks that any rank may read without the owner's help.

    MPI calls this a window with passive reads. No buffer in it may be written to or freed
    before every rank has closed it.
    """

    def get(self, peer: int, which: int, part: tuple[slice, ...], target: Buffer) -> None:
        """Copy a part of a rank's buffer; on a GPU on the caller's stream.

        Parameters
        ----------
        peer : int
            The rank that owns the buffer; it may be this one.
        which : int
            The position among the owner's buffers.
        part : tuple of slice
            The part to read.
        target : array
            The destination: of the shape of the part and the buffer's dtype, any strides.
        """

    def close(self) -> Work:
        """Announce that this rank has read all it needs; collective.

        Returns
        -------
        Work
            Done when all ranks have closed the window; only then may the buffers be written
            to or freed.
        """


class Comm(Protocol):
    """Ranks that can exchange buffers.

    Attributes
    ----------
    rank : int
        This rank, from 0.
    size : int
        Number of ranks.
    """

    rank: int
    size: int

    def exchange(self, sends: Messages, recvs: Messages) -> Work:
        """Send and receive a batch of messages, point to point.

        Messages from one rank to another are matched in their order. Ranks without messages
        do not call it.

        Parameters
        ----------
        sends, recvs : sequence of (int, array)
            The other rank and the buffer. Sender and receiver give buffers of the same number
            of bytes. A rank may send to itself if the same batch receives the message.
        """

    def broadcast(self, buffer: Buffer, root: int) -> Work:
        """Copy the buffer of ``root`` to the buffers of all ranks.

        Parameters
        ----------
        buffer : array
            Of the same shape and dtype on every rank.
        root : int
            The sender.
        """

    def all_gather(self, out: Buffer, part: Buffer) -> Work:
        """Concatenate the ranks' equal-sized ``part`` into ``out`` (flat).

        Parameters
        ----------
        out : array
            Of ``size`` times as many elements as ``part``, and its dtype.
        part : array
            The contribution of this rank.
        """

    def reduce_scatter(self, part: Buffer, whole: Buffer, op: Reduction = "sum") -> Work:
        """Reduce the ranks' ``whole`` and keep slice ``rank`` of the result (flat, equal).

        Parameters
        ----------
        part : array
            The destination of this rank's slice of the result.
        whole : array
            The contribution of this rank: ``size`` times as many elements, of the same dtype.
        op : {"sum", "min", "max"}
            As in :meth:`all_reduce`.
        """

    def all_reduce(self, buffer: Buffer, op: Reduction = "sum") -> Work:
        """Reduce ``buffer`` over the ranks in place, with the same bits on every rank.

        Parameters
        ----------
        buffer : array
            The contribution of this rank, then the result.
        op : {"sum", "min", "max"}
            The sum of bool is "or". Complex numbers have no minimum and no maximum.
        """

    def all_to_all(self, out: Buffer, out_counts: Counts, whole: Buffer, in_counts: Counts) -> Work:
        """Send ``in_counts[q]`` elements of flat ``whole`` to each rank q.

        Parameters
        ----------
        out : array
            The received elements, in the order of the ranks.
        out_counts : sequence of int
            Number of elements from each rank. Counts may be uneven and zero.
        whole : array
            The elements to send, in the order of the ranks; of the dtype of ``out``.
        in_counts : sequence of int
            Number of elements for each rank.
        """

    def barrier(self) -> None:
        """Return when every rank has called this.

        Raises
        ------
        CommError
            If a peer is lost or the time limit passes.
        """

    def window(self, buffers: Sequence[Buffer]) -> Window | None:
        """Let all ranks read these buffers of each rank.

        Parameters
        ----------
        buffers : sequence of array
            Any number, of any shape, dtype and strides. Others read the data that was written
            on the caller's stream so far.

        Returns
        -------
        Window or None
            ``None``, on every rank, if the transport, a host or the memory of any rank does
            not allow it.
        """

    def check(self) -> None:
        """Raise :class:`~dask_dgpu.errors.CommAbortedError` if it was aborted.

        After an abort on a GPU, streams continue with whatever is in the buffers. Call this
        after the last synchronisation, before you use the result.
        """

    def abort(self, reason: str) -> None:
        """Make every pending and later call of this rank raise; from any thread, never blocks.

        The other ranks may notice it by an error. Over NCCL they do not, and must be aborted
        too.

        Parameters
        ----------
        reason : str
            Part of the text of the errors; only the first reason counts.
        """

    def close(self) -> None:
        """Release the transport; never blocks, even if peers are lost.

        Call it after the last wait, or to give up.
        """
