"""The lost workers and blocks of gangs, and the end of gangs whose lost workers do not return."""

from __future__ import annotations

import asyncio
import pickle
from collections import Counter
from itertools import count
from typing import TYPE_CHECKING, Any, cast

from distributed.protocol.serialize import Serialized

from dask_dgpu.errors import GangError

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState

    from dask_dgpu.runtime.scheduler.run import Run

Key = Any


class Losses:
    """The losses of each gang since its results were last taken.

    Parameters
    ----------
    scheduler : Scheduler
        The scheduler of the gangs' tasks.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._counts: Counter[Key] = Counter()
        self._last: dict[Key, tuple[int, GangError]] = {}
        self._ids = count()

    def add(self, run: Run, worker: str, phase: str, what: str = "a worker") -> None:
        """Count a loss, and start the time limit for the gang to continue without the worker."""
        self._counts[run.key] += 1
        error = GangError(f"{run.program.name} lost {what}", run.rank(worker), worker, phase)
        loss = next(self._ids)
        self._last[run.key] = loss, error
        self._look_after(run.program.limits.timeout, run.key, loss)

    def too_many(self, run: Run) -> GangError | None:
        """Return the error of a gang with more losses than allowed, otherwise ``None``."""
        lost = self._counts[run.key]
        if lost <= run.program.limits.restarts:
            return None
        cause = self._last[run.key][1]
        reason = f"{cause.reason} {lost} times"
        return GangError(reason, cause.rank, cause.worker, cause.phase)

    def forget(self, key: Key) -> None:
        """Forget the losses of a gang that is finished or released."""
        self._counts.pop(key, None)
        self._last.pop(key, None)

    def _look_after(self, seconds: float, key: Key, loss: int) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(seconds, self._end_if_in_vain, seconds, key, loss)

    def _end_if_in_vain(self, seconds: float, key: Key, loss: int) -> None:
        """End a gang that has waited since its last loss for workers that do not exist."""
        ts = self.scheduler.tasks.get(key)
        last, lost = self._last.get(key, (None, None))
        if last != loss or lost is None or ts is None or ts.state not in ("waiting", "no-worker"):
            return
        if not _in_vain(ts):
            self._look_after(seconds, key, loss)
            return
        reason = f"{lost.reason} and none came back"
        error = GangError(reason, lost.rank, lost.worker, lost.phase)
        # a waiting task needs a task to blame to become erred
        ts.exception = cast(Serialized, pickle.dumps(error))
        ts.exception_text = repr(error)
        ts.exception_blame = ts
        self.scheduler.transitions({key: "erred"}, stimulus_id=f"dgpu-in-vain-{loss}")


def _in_vain(ts: TaskState) -> bool:
    """Return whether a task waits for one without a worker, or for none that is processed.

    Other waits may be long: a worker requests a block from a lost one for half a minute.
    """
    states: set[str | None] = set()
    tasks = {ts}
    while tasks:
        states.update(each.state for each in tasks)
        tasks = set().union(*(each.waiting_on or () for each in tasks))
    return "no-worker" in states or states.isdisjoint(("processing", "queued"))
