"""The losses of gangs, and the ends of runs: failed, abandoned, or restarted."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, cast

from distributed.protocol.serialize import Serialized

from dask_dgpu.errors import GangError
from dask_dgpu.runtime.execute import Span
from dask_dgpu.runtime.failure import RankError, pickled
from dask_dgpu.runtime.program import Launch
from dask_dgpu.runtime.scheduler.messages import announce, no_time, send
from dask_dgpu.runtime.scheduler.recorder import recorders
from graph_opt.dask_graph.internals import Task
from graph_opt.dask_graph.plain import Plain

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState

    from dask_dgpu.runtime.scheduler.epoch import Epochs
    from dask_dgpu.runtime.scheduler.run import Run

logger = logging.getLogger(__name__)

Key = Any

ANSWER_SECONDS = 2.0
"""Seconds for the worker of a failed gang's task to report the failure itself."""


class Losses:
    """The losses of each gang since its results were last taken."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._counts: Counter[Key] = Counter()
        self._last: dict[Key, tuple[int, GangError]] = {}
        self._ids = count()

    def add(self, run: Run, worker: str, phase: str, what: str = "a worker") -> None:
        """Count a loss, and start the time limit for the gang to continue without the worker."""
        self._counts[run.key] += 1
        error = GangError(f"{run.launch.title} lost {what}", run.rank(worker), worker, phase)
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
        fail_waiting(self.scheduler, ts, error, f"dgpu-in-vain-{loss}")


class Endings:
    """Ends runs, on all their members; ``runs`` has the current run of each gang."""

    def __init__(self, scheduler: Scheduler, runs: dict[Key, Run], epochs: Epochs) -> None:
        self.scheduler = scheduler
        self.runs = runs
        self.epochs = epochs
        self.short: set[Key] = set()  # gangs that ran out of memory, until their results are taken
        # the last event that cancelled runs, and these
        self.cancelled: tuple[str, list[Run]] = ("", [])

    def fail(
        self, run: Run, error: GangError, spans: Sequence[Span] = (), *, may_be_lost: bool = False
    ) -> None:
        """Give up a run; its ``gang`` task raises, or Dask computes the blocks.

        A gang that runs out of memory starts over once, planned with less.

        If the reason may be a lost member, this waits first: ranks notice a broken connection
        before the scheduler does, and after a loss the run restarts. Profilers get the ``spans``
        of the failed rank.
        """
        if may_be_lost:
            loop = asyncio.get_running_loop()
            loop.call_later(run.program.limits.grace, self.fail, run, error, spans)
            return
        if run.outcome.done():
            return
        if isinstance(error, RankError) and error.out_of_memory:
            if not run.less:
                self._start_over_with_less(run, error)
                return
            self.short.discard(run.key)  # if a client tries again, so does the gang
        undeclared = isinstance(error, RankError) and error.undeclared
        plain = self._plain_of(run) if undeclared else None
        if plain is not None and run.holder is not None:  # it takes a gang task to run Dask's
            self.start_over(run.key, f"dgpu-undeclared-{run.run_id}")
            return
        for recorder in recorders(self.scheduler):
            recorder.failed(run, error, spans)
        if plain is not None:
            run.leave(plain)
            message = f"dask_dgpu left a gang to Dask: {error.reason}"
            logger.warning(message)
            names = [name for name, _ in run.launch.outputs]
            announce(self.scheduler, names, error.reason, message)
        else:
            run.fail(error)
            patience = ANSWER_SECONDS if run.holder is None else 0
            asyncio.get_running_loop().call_later(patience, self._insist, run, error)
        self.abandon(run, str(error))

    def _plain_of(self, run: Run) -> Plain | bytes | None:
        """Return Dask's own tasks for a gang; none if an error is to be raised.

        They travel with the program if the graph was optimized elsewhere, as for an array in a
        Delayed. Otherwise the gang's task on the scheduler has them.
        """
        task = self.scheduler.tasks.get(run.key)
        launch = None if task is None else launch_of(task)
        return (launch or run.launch).plain

    def _start_over_with_less(self, run: Run, error: GangError) -> None:
        """Let all members free what they keep, and Dask run the gang again, planned with less."""
        logger.warning("gang %s is planned again with less memory: %s", run.key, error)
        self.short.add(run.key)
        self.start_over(run.key, f"dgpu-out-of-memory-{run.run_id}")
        send(self.scheduler, run.members, {"op": "dgpu-relieve"})  # before the next launch

    def _insist(self, run: Run, error: GangError) -> None:
        """Fail the gang's task here if its worker does not; Dask may have it run again."""
        ts = self.scheduler.tasks.get(run.key)
        if self.runs.get(run.key) is run and ts is not None and ts.processing_on is not None:
            self.scheduler.handle_task_erred(
                run.key,
                f"dgpu-failed-{run.run_id}",
                worker=ts.processing_on.address,
                run_id=ts.run_id,
                exception=pickled(error),
                exception_text=repr(error),
                **no_time(),
            )

    def cancel(self, run: Run, stimulus_id: str) -> None:
        """End the run of a released task."""
        run.restart()
        self.abandon(run, "it was cancelled")
        self.cancelled = stimulus_id, [*self.cancelled_by(stimulus_id), run]

    def cancelled_by(self, stimulus_id: str) -> list[Run]:
        """Return the runs that one event has cancelled, if it is the last one that did."""
        return self.cancelled[1] if self.cancelled[0] == stimulus_id else []

    def abandon(self, run: Run, reason: str) -> None:
        """Make the remaining members give up, and never use the communicator again.

        Other runs on that communicator restart, later: Dask may be within transitions.
        """
        if run.epoch is None:
            return
        send(self.scheduler, run.members, run.give_up_message(reason))
        self._void(run.epoch, reason, f"dgpu-abandoned-{run.run_id}")

    def broken(self, epoch: str, reason: str, worker: str) -> None:
        """Never use a communicator to which a worker could not connect before its first run."""
        self._void(epoch, f"{worker} could not join: {reason}", f"dgpu-broken-{epoch}")

    def _void(self, epoch: str, reason: str, stimulus_id: str) -> None:
        self.epochs.discard(epoch, reason)
        loop = asyncio.get_running_loop()
        for run in self.runs.values():
            if run.epoch == epoch and not run.outcome.done():
                loop.call_soon(self._start_over_if_void, run, stimulus_id)

    def _start_over_if_void(self, run: Run, stimulus_id: str) -> None:
        if self.runs.get(run.key) is run and not run.outcome.done():
            self.start_over(run.key, stimulus_id)

    def start_over(self, key: Key, stimulus_id: str) -> None:
        """Make Dask run a gang again, from the staging of its blocks."""
        run = self.runs.get(key)
        if run is not None:
            run.starts_over = True
            if not run.outcome.done():
                run.restart()
                self.abandon(run, "it starts over")
        ts = self.scheduler.tasks.get(key)
        if ts is None:
            return
        if any(out.state == "erred" for out in ts.dependents):
            return
        released = [out.key for out in ts.dependents if out.state not in ("memory", "released")]
        released += [ts.key, *(stage.key for stage in ts.dependencies)]
        recommendations: dict[Key, Any] = dict.fromkeys(released, "released")
        logger.info("gang %s starts over: %s", key, stimulus_id)
        self.scheduler.transitions(recommendations, stimulus_id=stimulus_id)
        self.scheduler.stimulus_queue_slots_maybe_opened(stimulus_id=stimulus_id)


def fail_waiting(scheduler: Scheduler, ts: TaskState, error: GangError, stimulus_id: str) -> None:
    """Let a task fail that waits for others; it needs a task to blame to become erred."""
    ts.exception = cast(Serialized, pickle.dumps(error))
    ts.exception_text = repr(error)
    ts.exception_blame = ts
    scheduler.transitions({ts.key: "erred"}, stimulus_id=stimulus_id)


def launch_of(gang: TaskState) -> Launch | None:
    """Return the launch of a ``gang`` task, which an array in a Delayed may hide."""
    spec = gang.run_spec
    launch = spec.args[0] if isinstance(spec, Task) and spec.args else None
    return launch if isinstance(launch, Launch) else None


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
