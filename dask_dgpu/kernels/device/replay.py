"""The same launches again and again, as a CUDA graph.

A launch takes the host longer than a small kernel takes the GPU. Launches that were recorded
are sent as one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import cupy

T = TypeVar("T")

SPOILED = cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError
"""What a recording ends with if another thread waits for the whole device meanwhile.

CUDA takes that for a conflict in any mode, and libraries do it when they are closed.
"""


class Replay(Generic[T]):
    """Work that is the same launches on the same memory each time.

    It is issued the first time, when kernels are compiled; recorded the second time; and
    from then on replayed, on the current stream. If other threads spoil the recording, it is
    issued once more, and recorded the next time.
    """

    def __init__(self) -> None:
        self._result: list[T] = []
        self._graph: Any = None

    @property
    def recorded(self) -> bool:
        """Whether the work is replayed from now on."""
        return self._graph is not None

    def __call__(self, work: Callable[[], T]) -> T:
        """Do the work, which may be issued again after an error; return what it has returned."""
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
    """Return the launches of some work, none of which has happened, as a graph.

    They are recorded on a stream of their own, which no other thread waits for.
    """
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        try:
            work()
        finally:
            graph = stream.end_capture()
    return graph
