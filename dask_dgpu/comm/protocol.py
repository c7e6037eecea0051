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
from typing import Any, Literal, Protocol, runtime_checkable

Buffer = Any
Counts = Sequence[int]
Messages = Sequence[tuple[int, Buffer]]
"""The other rank and the buffer of each message."""
Reduction = Literal["sum", "min", "max"]


class Work(Protocol):
    """A transfer in progress."""

    @property
    def ended(self) -> float | None:
        """Reading of ``time.perf_counter`` when the data had arrived.

        ``None`` until then, and always if the transport does not know it or the transfer is small.
        """

    def wait(self) -> None:
        """Return when the buffers may be used again.

        On a CPU the data has arrived. On a GPU the caller's current stream waits for it; the
        host does not. It waits for the other ranks without a limit.

        Raises
        ------
        CommError
            If a peer is lost; on a GPU a later call may be the first to raise.
        CommAbortedError
            If the communicator was aborted, from any thread.
        """


class Window(Protocol):
    """Buffers of all ranks that any rank may read without the owner's help.

    MPI calls this a window with passive reads. No buffer in it may be written to or freed
    before every rank has closed it.
    """

    def get(self, peer: int, which: int, part: tuple[slice, ...], target: Buffer) -> None:
        """Copy a part of a rank's buffer; on a GPU on the caller's stream.

        ``peer`` may be this rank. ``which`` is the position among its buffers. The target has the
        shape of the part, the buffer's dtype and any strides.
        """

    def close(self) -> Work:
        """Announce that this rank has read all it needs; collective.

        When all ranks have closed the window, the work is done. Only then may the buffers be
        written to or freed.
        """


class Comm(Protocol):
    """One of ``size`` ranks that can exchange buffers."""

    rank: int
    size: int

    def exchange(self, sends: Messages, recvs: Messages) -> Work:
        """Send and receive a batch of messages, point to point.

        Messages from one rank to another are matched in their order. Ranks without messages
        do not call it. Sender and receiver give buffers of the same number of bytes. A rank may
        send to itself if the same batch receives the message.
        """

    def all_reduce(self, buffer: Buffer, op: Reduction = "sum") -> Work:
        """Reduce ``buffer`` over the ranks by ``op``, in place, with the same bits on every rank.

        The sum of bool is "or". Complex numbers have no minimum and no maximum.
        """

    def barrier(self) -> None:
        """Return when every rank has called this; raise as :meth:`Work.wait` does."""

    def window(self, buffers: Sequence[Buffer]) -> Window | None:
        """Let all ranks read these buffers of each rank, of any shape, dtype and strides.

        Others read the data that was written on the caller's stream so far. Returns ``None``, on
        every rank, if the transport, a host or the memory of any rank does not allow it.
        """

    def check(self) -> None:
        """Raise :class:`~dask_dgpu.errors.CommAbortedError` if it was aborted.

        After an abort on a GPU, streams continue with whatever is in the buffers. Call this
        after the last synchronisation, before you use the result.
        """

    def abort(self, reason: str) -> None:
        """Make every pending and later call of this rank raise; from any thread, never blocks.

        The errors contain the first reason. The other ranks may notice it by an error. Over NCCL
        they do not, and must be aborted too.
        """

    def close(self) -> None:
        """Release the transport; never blocks, even if peers are lost.

        Call it after the last wait, or to give up.
        """


class Recording(Protocol):
    """Launches of a GPU that were recorded, among them calls of a communicator.

    They are not sent any more once it is ``ended``.
    """

    ended: bool

    def end(self) -> None:
        """Forget the launches; from any thread."""


@runtime_checkable
class RecordableComm(Protocol):
    """A communicator whose calls a GPU can record and repeat."""

    def hold(self, recording: Recording) -> None:
        """End a recording when this communicator is aborted or closed."""

    def launched(self) -> None:
        """Let a close wait for a recording on the current stream, as for a call."""
