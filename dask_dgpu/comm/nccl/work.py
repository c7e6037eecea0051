"""The transfers of an NCCL communicator, and events that show whether a GPU has passed them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import cupy

from dask_dgpu.comm.common import Lifetime
from dask_dgpu.comm.protocol import Work

if TYPE_CHECKING:
    from dask_dgpu.comm.nccl.communicator import NcclComm

_INTERVAL = 0.2


class Marks:
    """Events that are recorded after waits; a thread recycles the passed ones.

    The thread ends with the communicator's ``lifetime``, which it aborts if a wait is pending for
    ``limit`` seconds.
    """

    def __init__(self, lifetime: Lifetime, limit: float | None) -> None:
        self._lifetime = lifetime
        self._limit = limit
        # time, name of the call, event
        self._marks: deque[tuple[float, str, Any]] = deque()
        self._spare: list[Any] = []
        self._call: tuple[float, str] | None = None
        threading.Thread(target=self._watch, name="nccl-watch", daemon=True).start()

    @contextmanager
    def calling(self, name: str) -> Iterator[None]:
        """Watch a call: the first message between two ranks connects them and blocks."""
        self._call = (time.monotonic(), name)
        try:
            yield
        finally:
            self._call = None

    def record(self, name: str) -> None:
        """Mark a wait on the current stream, unless it is recorded."""
        if cupy.cuda.runtime.streamIsCapturing(cupy.cuda.get_current_stream().ptr):
            return
        event = self._spare.pop() if self._spare else cupy.cuda.Event(disable_timing=True)
        event.record()
        self._marks.append((time.monotonic(), name, event))

    def wait(self, seconds: float) -> None:
        """Return when the GPU has passed all marks, after ``seconds`` at the latest."""
        late = time.monotonic() + seconds
        marks = list(self._marks)
        while marks and not marks[-1][2].done and time.monotonic() < late:
            time.sleep(_INTERVAL)

    def _watch(self) -> None:
        while self._lifetime.reason is None:
            while self._marks and self._marks[0][2].done:
                self._spare.append(self._marks.popleft()[2])
            if self._limit is not None:
                self._abort_if_late(self._limit)
            time.sleep(_INTERVAL)

    def _abort_if_late(self, limit: float) -> None:
        pending = [mark[:2] for mark in list(self._marks)[:1]]
        call = self._call
        pending += [call] if call else []
        for begin, name in pending:
            if time.monotonic() > begin + limit:
                self._lifetime.abort(f"{name} did not finish within {limit:g} s")


class NcclWork:
    """A transfer on NCCL's stream."""

    ended: float | None = None  # only the GPU knows

    def __init__(self, comm: NcclComm, name: str, work: Any, kept: Any) -> None:
        self._comm = comm
        self._name = name
        self._work = work
        self._kept = kept  # NCCL may use the buffers until the wait

    def wait(self) -> None:
        """Make the caller's stream, not the host, wait for the transfer."""
        self._comm._order(self._work, self._name)
        self._work = self._kept = None

    def follow(self) -> None:
        """Make the current stream wait too; the buffers still belong to the transfer."""
        if self._work is not None:
            with self._comm._calling_torch(self._name):
                self._work.wait()


class DeferredWork:
    """A transfer with a step after it, on the caller's stream."""

    ended: float | None = None  # only the GPU knows

    def __init__(self, work: Work, then: Callable[[], None]) -> None:
        self._work: Any = work
        self._then: Callable[[], None] | None = then

    def wait(self) -> None:
        """Wait, then run the step, once."""
        self._work.wait()
        then, self._then = self._then, None
        if then is not None:
            then()

    def follow(self) -> None:
        """Make the current stream wait too, without the step."""
        self._work.follow()
