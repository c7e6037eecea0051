"""Launches that are recorded once and sent again as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import cupy

T = TypeVar("T")

SPOILED = cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError
"""Errors of a recording while another thread waits for the whole device.

CUDA reports a conflict in any mode, and libraries wait when they are closed.
"""


class Replay(Generic[T]):
    """Work with the same launches on the same memory each time, as a CUDA graph.

    A launch takes the host longer than a small kernel takes the GPU. Recorded launches are sent at
    once.

    The first call issues it, which compiles kernels; the second one records it; later calls replay
    it, on the current stream. If other threads break the recording, it is issued once more, and
    recorded the next time.
    """

    def __init__(self) -> None:
        self._result: list[T] = []
        self._graph: Any = None

    @property
    def recorded(self) -> bool:
        """Whether later calls replay the work."""
        return self._graph is not None

    def __call__(self, work: Callable[[], T]) -> T:
        """Do the work, which may be issued again after an error; return its result."""
        if not self._result:
            self._result.append(work())
            return self._result[0]
        if self._graph is None:
            try:
                self._graph = _recorded(work)
            except SPOILED:
                return work()
        self._graph.launch(cupy.cuda.get_current_stream())
        return self._result[0]


def _recorded(work: Callable[[], Any]) -> Any:
    """Record the launches of some work as a graph, without running them.

    The recording has a stream of its own, for which no other thread waits.
    """
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        try:
            work()
        finally:
            graph = stream.end_capture()
    return graph
