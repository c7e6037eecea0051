"""The ends of runs on the scheduler: failed, abandoned, or restarted."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from dask_dgpu.errors import GangError
from dask_dgpu.runtime.failure import RankError, pickled
from dask_dgpu.runtime.plainly import plain_of
from dask_dgpu.runtime.scheduler.announce import announce
from dask_dgpu.runtime.scheduler.membership import send

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

    from dask_dgpu.runtime.scheduler.epoch import Epochs
    from dask_dgpu.runtime.scheduler.run import Run

logger = logging.getLogger(__name__)

Key = Any

ANSWER_SECONDS = 2.0
"""Seconds for the worker of a failed gang's task to report the failure itself."""


class Endings:
    """Ends runs, on all their members.

    Parameters
    ----------
    scheduler : Scheduler
        The scheduler of the gangs' tasks.
    runs : dict of key to Run
        The current run of each gang.
    epochs : Epochs
        The epochs of the runs.

    Attributes
    ----------
    cancelled : tuple of str and list of Run
        The last event that cancelled runs, and these.
    """

    def __init__(self, scheduler: Scheduler, runs: dict[Key, Run], epochs: Epochs) -> None:
        self.scheduler = scheduler
        self.runs = runs
        self.epochs = epochs
        self.cancelled: tuple[str, list[Run]] = ("", [])

    def fail(self, run: Run, error: GangError, may_be_lost: bool = False) -> None:
        """Give up a run; its ``gang`` task raises, or Dask computes the blocks.

        If the reason may be a lost member, this waits first: ranks notice a broken connection
        before the scheduler does, and after a loss the run restarts.
        """
        if may_be_lost:
            loop = asyncio.get_running_loop()
            loop.call_later(run.program.limits.grace, self.fail, run, error)
            return
        if run.outcome.done():
            return
        undeclared = isinstance(error, RankError) and error.undeclared
        plain = plain_of(self.scheduler.tasks.get(run.key)) if undeclared else None
        if plain is not None:
            run.leave(plain)
            message = f"dask_dgpu left a gang to Dask: {error.reason}"
            logger.warning(message)
            names = [name for name, _ in run.program.outputs]
            announce(self.scheduler, names, error.reason, message)
        else:
            run.fail(error)
            asyncio.get_running_loop().call_later(ANSWER_SECONDS, self._insist, run, error)
        self.abandon(run, str(error))

    def _insist(self, run: Run, error: GangError) -> None:
        """Fail the gang's task here if its worker does not."""
        ts = self.scheduler.tasks.get(run.key)
        if self.runs.get(run.key) is not run or ts is None or ts.processing_on is None:
            return
        stimulus_id = f"dgpu-failed-{run.run_id}"
        recommendations = self.scheduler.transition(
            run.key,
            "erred",
            stimulus_id,
            worker=ts.processing_on.address,
            cause=run.key,
            exception=pickled(error),
            exception_text=repr(error),
        )
        self.scheduler.transitions(recommendations, stimulus_id=stimulus_id)

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
