"""Runs that end badly: lost workers, errors, void communicators, and paused workers."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING, Any

from dask.utils import format_bytes
from distributed.core import Status

from dask_dgpu.errors import GangError
from dask_dgpu.runtime.execute import Span
from dask_dgpu.runtime.failure import RankError, pickled
from dask_dgpu.runtime.scheduler.records import recorders
from dask_dgpu.runtime.scheduler.states import (
    announce,
    fail,
    fail_waiting,
    launch_of,
    released,
    run_again,
    send,
)
from graph_opt.dask_graph.emit import is_gang, is_stage
from graph_opt.dask_graph.plain import Plain

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState, WorkerState

    from dask_dgpu.runtime.scheduler.run import Epochs, Run

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
        return GangError(f"{cause.reason} {lost} times", cause.rank, cause.worker, cause.phase)

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
        error = GangError(f"{lost.reason} and none came back", lost.rank, lost.worker, lost.phase)
        fail_waiting(self.scheduler, ts, error, f"dgpu-in-vain-{loss}")


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
        if self.runs.get(run.key) is run and ts is not None:
            fail(self.scheduler, ts, error, pickled(error), f"dgpu-failed-{run.run_id}")

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
        message = run.message("dgpu-give-up", epoch=run.epoch, reason=reason)
        send(self.scheduler, run.members, message)
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
        if ts is not None:
            logger.info("gang %s starts over: %s", key, stimulus_id)
            run_again(self.scheduler, ts, stimulus_id)


class Paused:
    """Lets other workers run the tasks of paused ones, and ends gangs if that does not help.

    Dask pauses a worker whose memory is nearly full: it runs no further task until memory is free.
    But its staged blocks are only freed by their gang, which may wait for its tasks, and its
    results only by the ``out`` tasks that would return them.
    """

    def __init__(self, scheduler: Scheduler, runs: dict[Key, Run]) -> None:
        self.scheduler = scheduler
        self.runs = runs
        self._since: dict[Key, float] = {}

    def check(self) -> None:
        """Look for such gangs, once in a while."""
        for run in list(self.runs.values()):  # transitions change the runs
            self._fetch_results(run)
        now, stuck = monotonic(), dict(self._stuck())
        self._since = {gang.key: self._since.get(gang.key, now) for gang in stuck}
        for gang, worker in stuck.items():
            launch = launch_of(gang)
            if launch is None:
                continue
            waited, limits = now - self._since[gang.key], launch.program.limits
            if waited >= limits.timeout:
                reason = f"{launch.title} cannot begin: {self._reason(gang, worker)}"
                error = GangError(reason, worker=worker.address, phase="stage")
                fail_waiting(self.scheduler, gang, error, f"dgpu-paused-{now}")
            elif waited >= limits.grace and self.scheduler.running:
                unable = [ts.key for ts in self._unable(gang, worker)]
                released(self.scheduler, unable, f"dgpu-paused-{now}")

    def _fetch_results(self, run: Run) -> None:
        """Let other workers fetch the results of a paused one."""
        gang = self.scheduler.tasks.get(run.key)
        if not run.finished or gang is None or gang.state != "memory":
            return
        stuck = []
        for out in gang.dependents:
            idle = out.state == "processing" and out.processing_on not in self.scheduler.running
            if idle or (out.state == "no-worker" and not out.loose_restrictions):
                out.loose_restrictions = True
                stuck.append(out.key)
        released(self.scheduler, stuck, f"dgpu-paused-{run.run_id}")

    def _stuck(self) -> Iterator[tuple[TaskState, WorkerState]]:
        """Yield gangs that have blocks on a paused worker and wait for its tasks."""
        paused = [w for w in self.scheduler.workers.values() if w.status is Status.paused]
        for worker in paused:
            for stage in worker.has_what:
                for gang in stage.dependents if is_stage(stage.key) else ():
                    if is_gang(gang.key) and any(self._unable(gang, worker)):
                        yield gang, worker

    def _unable(self, gang: TaskState, worker: WorkerState) -> Iterator[TaskState]:
        """Yield tasks for which a gang waits and a worker would have to run, or every worker."""
        nobody = not self.scheduler.running
        seen: set[TaskState] = set()
        left = list(gang.waiting_on or ())
        while left:
            ts = left.pop()
            if ts not in seen:
                seen.add(ts)
                left += ts.waiting_on or ()
                if ts.processing_on is worker or (nobody and ts.state in ("no-worker", "queued")):
                    yield ts

    def _reason(self, gang: TaskState, worker: WorkerState) -> str:
        staged = [stage for stage in gang.dependencies if stage in worker.has_what]
        nbytes = sum(ts.get_nbytes() for stage in staged for ts in stage.dependencies)
        return (
            f"Dask has paused a worker, which holds {format_bytes(nbytes)} of its blocks; "
            f"set dgpu.memory.limit to less"
        )
