"""Runs that end badly: lost workers, errors, void communicators, and waits in vain."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from distributed.core import Status

from dask_dgpu.errors import GangError
from dask_dgpu.runtime.failure import RankError, pickled
from dask_dgpu.runtime.scheduler.states import (
    announce,
    awaited,
    fail,
    fail_waiting,
    launch_of,
    released,
    run_again,
    send,
)
from graph_opt.dask_graph.plain import Plain
from graph_opt.model.names import is_gang, is_stage

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState

    from dask_dgpu.runtime.scheduler.run import Epochs, Run

logger = logging.getLogger(__name__)

Key = Any

ANSWER_SECONDS = 2.0
"""Seconds for the worker of a failed gang's task to report the failure itself."""


@dataclass
class Past:
    """What has happened to a gang since its results were last taken.

    It has lost a worker or a block so many times, at last the one of the ``error``. A gang that is
    ``short`` of memory is planned with less.
    """

    losses: int = 0
    error: GangError | None = None
    short: bool = False


class Endings:
    """Ends runs, on all their members; ``runs`` has the current run of each gang."""

    def __init__(self, scheduler: Scheduler, runs: dict[Key, Run], epochs: Epochs) -> None:
        self.scheduler = scheduler
        self.runs = runs
        self.epochs = epochs
        self.past: defaultdict[Key, Past] = defaultdict(Past)
        self.since: dict[Key, float] = {}  # gangs that wait in vain

    def lost(self, run: Run, worker: str, phase: str, what: str = "a worker") -> None:
        """Count a loss."""
        past = self.past[run.key]
        past.losses += 1
        past.error = GangError(f"{run.launch.title} lost {what}", run.rank(worker), worker, phase)

    def too_many(self, run: Run) -> GangError | None:
        """Return the error of a gang with more losses than allowed, otherwise ``None``."""
        past = self.past.get(run.key, Past())
        last = past.error
        if last is None or past.losses <= run.program.limits.restarts:
            return None
        return GangError(f"{last.reason} {past.losses} times", last.rank, last.worker, last.phase)

    def fail(self, run: Run, error: GangError, *, may_be_lost: bool = False) -> None:
        """Give up a run; its ``gang`` task raises, or Dask computes the blocks.

        A gang that runs out of memory starts over once, planned with less.

        If the reason may be a lost member, this waits first: ranks notice a broken connection
        before the scheduler does, and after a loss the run restarts.
        """
        if may_be_lost:
            loop = asyncio.get_running_loop()
            loop.call_later(run.program.limits.grace, self.fail, run, error)
            return
        if run.outcome.done():
            return
        if isinstance(error, RankError) and error.out_of_memory:
            if not run.less:
                self._start_over_with_less(run, error)
                return
            self.past[run.key].short = False  # if a client tries again, so does the gang
        undeclared = isinstance(error, RankError) and error.undeclared
        plain = self._plain_of(run) if undeclared else None
        if plain is not None and run.holder is not None:  # it takes a gang task to run Dask's
            self.start_over(run.key, f"dgpu-undeclared-{run.run_id}")
            return
        if plain is not None:
            run.end("plain", plain=plain)
            message = f"dask_dgpu left a gang to Dask: {error.reason}"
            logger.warning(message)
            names = [name for name, _ in run.launch.outputs]
            announce(self.scheduler, names, error.reason, message)
        else:
            run.end("failed", error=pickle.dumps(error))
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
        self.past[run.key].short = True
        self.start_over(run.key, f"dgpu-out-of-memory-{run.run_id}")
        send(self.scheduler, run.members, {"op": "dgpu-relieve"})  # before the next launch

    def _insist(self, run: Run, error: GangError) -> None:
        """Fail the gang's task here if its worker does not; Dask may have it run again."""
        ts = self.scheduler.tasks.get(run.key)
        if self.runs.get(run.key) is run and ts is not None:
            fail(self.scheduler, ts, error, pickled(error), f"dgpu-failed-{run.run_id}")

    def cancel(self, run: Run) -> None:
        """End the run of a released task: Dask releases it before a plugin hears of a loss."""
        run.end("restarted")
        self.abandon(run, "it was cancelled")
        gone = [member for member in run.members if member not in self.scheduler.workers]
        if gone:
            self.lost(run, gone[0], "stage" if run.epoch is None else "program")
            stimulus_id = f"dgpu-lost-{run.run_id}"
            asyncio.get_running_loop().call_soon(self.start_over, run.key, stimulus_id)

    def abandon(self, run: Run, reason: str) -> None:
        """Make the remaining members give up, and never use the communicator again.

        Other runs on that communicator restart, later: Dask may be within transitions.
        """
        if run.epoch is not None:
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
                run.end("restarted")
                self.abandon(run, "it starts over")
        ts = self.scheduler.tasks.get(key)
        if ts is not None:
            logger.info("gang %s starts over: %s", key, stimulus_id)
            run_again(self.scheduler, ts, stimulus_id)

    def check(self) -> None:
        """Let other workers run what gangs wait for in vain, and fail those that still do.

        Call this once in a while.
        """
        now, stuck = monotonic(), [*self._paused(), *self._deserted()]
        self.since = {gang.key: self.since.get(gang.key, now) for gang, *_ in stuck}
        for gang, error, unable in stuck:
            launch, waited = launch_of(gang), now - self.since[gang.key]
            if launch is None:
                continue
            if waited >= launch.program.limits.timeout:
                fail_waiting(self.scheduler, gang, error, f"dgpu-in-vain-{now}")
            elif waited >= launch.program.limits.grace and self.scheduler.running:
                released(self.scheduler, unable, f"dgpu-paused-{now}")

    def _paused(self) -> Iterator[tuple[TaskState, GangError, list[Key]]]:
        """Yield gangs that have blocks on a paused worker, and the tasks that it should run.

        Dask pauses a worker whose memory is nearly full until memory is free. But its staged blocks
        are freed by their gang, which may wait for tasks of that worker.
        """
        reason = "cannot begin: Dask has paused a worker that has its blocks; set dgpu.memory.limit"
        stand_still = () if self.scheduler.running else ("no-worker", "queued")
        for worker in self.scheduler.workers.values():
            stages = worker.has_what if worker.status is Status.paused else ()
            gangs = {ts for stage in stages if is_stage(stage.key) for ts in stage.dependents}
            for gang in filter(lambda ts: is_gang(ts.key), gangs):
                unable = [
                    ts.key
                    for ts in awaited(gang) - {gang}
                    if ts.processing_on is worker or ts.state in stand_still
                ]
                launch = launch_of(gang)
                if unable and launch is not None:
                    error = GangError(f"{launch.title} {reason}", None, worker.address, "stage")
                    yield gang, error, unable

    def _deserted(self) -> Iterator[tuple[TaskState, GangError, list[Key]]]:
        """Yield gangs that wait, since their last loss, for workers that do not exist.

        Other waits may be long: a worker requests a block from a lost one for half a minute.
        """
        for key, past in self.past.items():
            gang, last = self.scheduler.tasks.get(key), past.error
            if last is None or gang is None or gang.state not in ("waiting", "no-worker"):
                continue
            states = {ts.state for ts in awaited(gang)}
            if "no-worker" in states or states.isdisjoint(("processing", "queued")):
                reason = f"{last.reason} and none came back"
                yield gang, GangError(reason, last.rank, last.worker, last.phase), []
