"""A communicator over NCCL that measures which part of its transfers the GPU's work hides.

::

    compute lane    | product ......... | waits     | product
    NCCL's stream          |..........................|
                            hidden        exposed

The host never waits: events on the streams are read after the program.
"""

# The protocol documents the methods.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import cupy

from dask_dgpu.comm.protocol import Comm, Work
from dask_dgpu.comm.timed import Interval, Span, TimedComm, gpu_seconds

T = TypeVar("T")


@dataclass(frozen=True)
class _Taken:
    """The transfers of a step, and the waits of the compute lane in it."""

    span: Span
    transfers: list[Interval]
    waits: list[Interval]


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
        self._transfers: list[Interval] = []
        self._taken: list[_Taken] = []

    def note(self, span: Span) -> None:
        """Count what happened since the last call as a span's, once :meth:`finish` is called."""
        self._taken.append(_Taken(span, self._transfers[:], self.watch.waits[:]))
        self._transfers.clear()
        self.watch.waits.clear()
        self.note_bytes(span)

    def finish(self) -> None:
        """Write the seconds of all spans; call it when the GPU has finished."""
        self.watch.observer.synchronize()
        for taken in self._taken:
            transfers, waits = map(gpu_seconds, (taken.transfers, taken.waits))
            taken.span.exposed = waits
            taken.span.hidden = max(0.0, transfers - waits)
        self._taken.clear()

    def call(self, method: Callable[..., T], *arguments: Any) -> T:
        """Call a method whose work is on the caller's stream; the host may wait in it.

        What the compute lane idles meanwhile is a wait.
        """
        begin, idle = _event(), self.watch.compute.record()
        done = method(*arguments)
        self._transfers.append((begin, _event()))
        self.watch.waits.append((idle, self.watch.compute.record()))
        return done

    def start(self, method: Callable[..., Work], *arguments: Any) -> Work:
        """Start a transfer."""
        begin = _event()
        work: Any = method(*arguments)
        with self.watch.observer:
            work.follow()
            self._transfers.append((begin, _event()))
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
