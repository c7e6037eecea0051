"""A communicator that measures which part of its transfers the GPU's work hides, over NCCL.

The host never waits: events on the streams are read after the program::

    compute lane    | product ......... | waits     | product
    NCCL's stream          |..........................|
                            hidden        exposed
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import cupy

from dask_dgpu.comm.protocol import Comm, Work
from dask_dgpu.comm.timed import Span, TimedComm

T = TypeVar("T")
Interval = tuple[Any, Any]
"""Two events on one stream, or on two of which the second is later."""


def _seconds(intervals: list[Interval]) -> float:
    """Return the sum of intervals that the GPU has passed."""
    return float(sum(cupy.cuda.get_elapsed_time(*interval) for interval in intervals)) / 1e3


class StreamTimedComm(TimedComm):
    """One rank of another communicator, whose calls it passes on; see :class:`Comm`.

    ``watch`` is the device's. The seconds of the compute lane's waits are ``exposed``, those of the
    transfers beyond these ``hidden``. A transfer begins when the stream of its caller reaches it,
    and lasts until its data has arrived: the delay of late peers is included. Transfers in progress
    at the same time all count.
    """

    def __init__(self, comm: Comm, watch: Any) -> None:
        super().__init__(comm)
        self.watch = watch
        self._started: list[Interval] = []
        self._noted: list[tuple[Span, list[Interval], list[Interval]]] = []

    def note(self, span: Span) -> None:
        """Count what happened since the last call as a span's, once :meth:`finish` is called."""
        self._noted.append((span, self._started, self.watch.waits[:]))
        self._started = []
        self.watch.waits.clear()
        self.note_bytes(span)

    def finish(self) -> None:
        """Write the seconds of all spans; call it when the GPU has finished."""
        self.watch.observer.synchronize()
        for span, transfers, waits in self._noted:
            span.exposed = _seconds(waits)
            span.hidden = max(0.0, _seconds(transfers) - span.exposed)
        self._noted.clear()

    def call(self, method: Callable[..., T], *arguments: Any) -> T:
        """Call a method whose work is on the caller's stream; the host may wait in it.

        What the compute lane idles meanwhile is a wait.
        """
        begin, idle = _event(), self.watch.compute.record()
        done = method(*arguments)
        self._started.append((begin, _event()))
        self.watch.waits.append((idle, self.watch.compute.record()))
        return done

    def start(self, method: Callable[..., Work], *arguments: Any) -> Work:
        """Start a transfer."""
        begin = _event()
        work: Any = method(*arguments)
        with self.watch.observer:
            work.follow()
            self._started.append((begin, _event()))
        return _StreamTimedWork(self, work)


class _StreamTimedWork:
    """A transfer that was started just now."""

    ended: float | None = None  # only the GPU knows

    def __init__(self, comm: StreamTimedComm, work: Work) -> None:
        self._comm, self._work = comm, work

    def wait(self) -> None:
        begin = _event()
        self._work.wait()
        if cupy.cuda.get_current_stream() == self._comm.watch.compute:
            self._comm.watch.waits.append((begin, _event()))


def _event() -> Any:
    """Record an event on the current stream."""
    return cupy.cuda.get_current_stream().record()
