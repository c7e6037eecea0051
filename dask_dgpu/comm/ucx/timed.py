"""A communicator over UCX that measures which part of its transfers the GPU's work hides.

::

    host         | start  | packs | waits           | launches ...
    compute lane | product ............ |           | product ...
    transfer              |.........................|
                           hidden        exposed

The host waits, and meanwhile launches nothing. The compute lane is idle once it has finished what
was launched before: events on it tell from when to when.
"""

# The protocol documents the methods.

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from dask_dgpu.comm.protocol import Comm
from dask_dgpu.comm.timed import Interval, Span, TimedComm, gpu_seconds

T = TypeVar("T")


class LaneTimedComm(TimedComm):
    """One rank of another communicator, whose calls it passes on; see :class:`Comm`.

    ``watch`` is the device's. ``exposed`` are the seconds in which the compute lane is idle
    because the host is in a call, or because the lane waits for another. ``hidden`` are those of
    the transfers beyond these, by the clock of the host.
    """

    def __init__(self, comm: Comm, watch: Any) -> None:
        super().__init__(comm)
        self.watch = watch
        self._noted: list[tuple[Span, float, list[Interval]]] = []

    def call(self, method: Callable[..., T], *arguments: Any) -> T:
        """Call a method, which keeps the host waiting."""
        begin = self.watch.compute.record()
        try:
            return super().call(method, *arguments)
        finally:
            self.watch.waits.append((begin, self.watch.compute.record()))

    def note(self, span: Span) -> None:
        """Count what happened since the last call as a span's, once :meth:`finish` is called."""
        self._noted.append((span, sum(self.take()), self.watch.waits[:]))
        self.watch.waits.clear()
        self.note_bytes(span)

    def finish(self) -> None:
        """Write the seconds of all spans; call it when the GPU has finished."""
        for span, transfers, waits in self._noted:
            span.exposed = gpu_seconds(waits)
            span.hidden = max(0.0, transfers - span.exposed)
        self._noted.clear()
