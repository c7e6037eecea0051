"""A communicator that measures which part of its transfers the host's other work hides.

::

    host       | start   | packs, multiplies ...   | wait    | unpacks
    transfer             |.............................|
                 exposed   hidden                    exposed
"""

# The protocol documents the methods.
# ruff: noqa: D102

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from dask_dgpu.comm.common import even_counts
from dask_dgpu.comm.protocol import Buffer, Comm, Messages, Reduction, Window, Work

T = TypeVar("T")
Clock = Callable[[], float]


class Span(Protocol):
    """Receives the hidden and exposed seconds of a step, and the bytes that it sent."""

    hidden: float | None
    exposed: float | None
    sent_bytes: int


class TimedComm:
    """One rank of another communicator, whose calls it passes on; see :class:`Comm`.

    ``exposed`` are the seconds that the host spends in its calls: it starts transfers, waits for
    them, or reads windows. ``hidden`` are the seconds in which a transfer continues while the host
    does something else. A transfer lasts until its data has arrived, the delay of late peers
    included.

    Errors of ``hidden``: transfers in progress at the same time all count. The end of a transfer
    is noticed by another thread, some milliseconds late if this one keeps the interpreter. If a
    transport does not know the end (``local``, small transfers), nothing counts as hidden.

    ``sent_bytes`` are those that a call must send to other ranks, whatever the transport does. An
    all-reduce exchanges pieces, and then sends the reduced piece to all. Reads of a window count
    for the reader.

    Over NCCL the figures mean nothing, since streams wait instead of the host; see
    :mod:`dask_dgpu.comm.timed_gpu`.
    """

    def __init__(self, comm: Comm, clock: Clock = time.perf_counter) -> None:
        self.rank, self.size = comm.rank, comm.size
        self.clock = clock
        self.hidden = self.exposed = 0.0
        self.sent_bytes = 0
        self._comm = comm

    def take(self) -> tuple[float, float]:
        """Return ``hidden`` and ``exposed``, and count from 0 again."""
        taken = self.hidden, self.exposed
        self.hidden = self.exposed = 0.0
        return taken

    def note(self, span: Span) -> None:
        """Count what happened since the last call as a span's."""
        span.hidden, span.exposed = self.take()
        self.note_bytes(span)

    def note_bytes(self, span: Span) -> None:
        """Write the bytes of a span, and count from 0 again."""
        span.sent_bytes, self.sent_bytes = self.sent_bytes, 0

    def finish(self) -> None:
        """Do nothing: all spans have their seconds."""

    def call(self, method: Callable[..., T], *arguments: Any) -> T:
        """Call a method, whose time is exposed."""
        begin = self.clock()
        try:
            return method(*arguments)
        finally:
            self.exposed += self.clock() - begin

    def exchange(self, sends: Messages, recvs: Messages) -> Work:
        work = self.start(self._comm.exchange, sends, recvs)
        self.sent_bytes += sum(buffer.nbytes for peer, buffer in sends if peer != self.rank)
        return work

    def all_reduce(self, buffer: Buffer, op: Reduction = "sum") -> Work:
        work = self.start(self._comm.all_reduce, buffer, op)
        mine = even_counts(buffer.size, self.size)[self.rank]
        self.sent_bytes += (buffer.size + (self.size - 2) * mine) * buffer.itemsize
        return work

    def barrier(self) -> None:
        self.call(self._comm.barrier)

    def window(self, buffers: Sequence[Buffer]) -> Window | None:
        window = self.call(self._comm.window, buffers)
        return None if window is None else _TimedWindow(self, window)

    def check(self) -> None:
        self._comm.check()

    def abort(self, reason: str) -> None:
        self._comm.abort(reason)

    def close(self) -> None:
        self._comm.close()

    def start(self, method: Callable[..., Work], *arguments: Any) -> Work:
        """Start a transfer."""
        return _TimedWork(self, self.call(method, *arguments))


class _TimedWork:
    """A transfer that was started just now."""

    def __init__(self, comm: TimedComm, work: Work) -> None:
        self._comm, self._work = comm, work
        self._started: float | None = comm.clock()

    @property
    def ended(self) -> float | None:
        return self._work.ended

    def wait(self) -> None:
        begin = self._comm.clock()
        self._comm.call(self._work.wait)
        started, self._started = self._started, None  # a further wait hides nothing more
        if started is not None and self.ended is not None:
            self._comm.hidden += max(0.0, min(self.ended, begin) - started)


class _TimedWindow:
    """A window whose reads keep the host waiting."""

    def __init__(self, comm: TimedComm, window: Window) -> None:
        self._comm, self._window = comm, window

    def get(self, peer: int, which: int, part: tuple[slice, ...], target: Buffer) -> None:
        self._comm.call(self._window.get, peer, which, part, target)
        self._comm.sent_bytes += target.nbytes if peer != self._comm.rank else 0

    def close(self) -> Work:
        return self._comm.start(self._window.close)
