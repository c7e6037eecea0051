"""The launch of a run: members, plans, epoch, and a message to each member.

A run begins in one of two ways. The ``gang`` task calls, once its ``stage`` tasks have delivered
the blocks. Or, if all blocks are in memory when Dask reads the graph, or will be soon, the run
begins without tasks (:mod:`dask_dgpu.runtime.scheduler.direct`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from distributed.utils import log_errors
from zict import LRU

from dask_dgpu.errors import GangError
from dask_dgpu.runtime.scheduler.blocks import Staging, outs_of, restrict
from dask_dgpu.runtime.scheduler.direct import hold, let_go, release, stop_waiting
from dask_dgpu.runtime.scheduler.messages import send
from dask_dgpu.runtime.scheduler.planned import KEPT_PROGRAMS, Planned
from dask_dgpu.runtime.scheduler.recorder import recorders
from dask_dgpu.runtime.scheduler.sent import Sent
from dask_dgpu.runtime.scheduler.waiting import Waiting
from dask_dgpu.runtime.scheduler.watch import watch

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState

    from dask_dgpu.runtime.scheduler.endings import Endings, Losses
    from dask_dgpu.runtime.scheduler.epoch import Epochs
    from dask_dgpu.runtime.scheduler.run import Run

Key = Any


class Launches:
    """Launches runs; ``runs`` has the current run of each gang."""

    def __init__(
        self,
        scheduler: Scheduler,
        runs: dict[Key, Run],
        epochs: Epochs,
        losses: Losses,
        endings: Endings,
    ) -> None:
        self.scheduler = scheduler
        self.runs = runs
        self.epochs = epochs
        self.losses = losses
        self.endings = endings
        self.staging = Staging(scheduler)
        self.sent = Sent(scheduler, runs)
        self.waiting = Waiting()
        self.planned: LRU[Any, Planned] = LRU(KEPT_PROGRAMS, {})

    def begin(self, run: Run) -> None:
        """Choose the members of a new run, and launch it in the background."""
        self.runs[run.key] = run
        failure = self.losses.too_many(run)
        if failure is not None:
            run.fail(failure)
            return
        run.choose_members(self.scheduler)
        lost = [member for member in run.members if member not in self.scheduler.workers]
        if lost:
            self.losses.add(run, lost[0], "stage")
            self.endings.start_over(run.key, f"dgpu-stale-{run.run_id}")
            return
        run.task = asyncio.ensure_future(self._launch(run))

    def begin_at_once(self, run: Run, awaited: Collection[Key], stimulus_id: str) -> None:
        """Begin a run without its tasks, when the ``awaited`` blocks are in memory, too.

        If it cannot, its tasks run.
        """
        run.choose_members(self.scheduler)
        if not hold(self.scheduler, run, stimulus_id):
            return
        self.runs[run.key] = run
        if awaited:
            self.waiting.add(run, awaited)
        else:
            run.task = asyncio.ensure_future(self._launch(run))

    def arrived(self, key: Key) -> None:
        """Begin the runs that waited for this block only, once Dask has noted it."""
        for run in self.waiting.arrived(key):
            asyncio.get_running_loop().call_soon(self._resume, run)

    def missed(self, key: Key, stimulus_id: str) -> None:
        """Let the tasks of runs run that waited for a block: it has to be made again, or failed.

        So must the runs that wait for their results. Dask is within transitions, and may be about
        to let the ``gang`` tasks fail. It expects that a task with failed dependencies waits: if
        one was processed, Dask would run it again.
        """
        for run in self._in_vain(key):
            asyncio.get_running_loop().call_soon(self._leave_to_tasks, run)
            self.scheduler._transition(run.key, "waiting", stimulus_id)

    def _in_vain(self, key: Key) -> list[Run]:
        """Return the runs that wait for a block, or for the results of such a run.

        They wait no more.
        """
        found = self.waiting.missed(key)
        for run in found:  # which grows
            for out in self._outs(run):
                found += self.waiting.missed(out.key)
        return found

    def _outs(self, run: Run) -> Collection[TaskState]:
        gang = self.scheduler.tasks.get(run.key)
        return gang.dependents if gang is not None else ()

    def _resume(self, waited: Run) -> None:
        """Begin a run whose blocks are all in memory by now."""
        if self.runs.get(waited.key) is not waited or waited.outcome.done():
            return
        run = waited.on_blocks(self.scheduler)
        if run is None:
            self._leave_to_tasks(waited)
            return
        self.runs[run.key] = run
        run.task = asyncio.ensure_future(self._launch(run))

    def remove_worker(self, worker: str) -> None:
        """Forget what a lost worker had."""
        self.staging.remove_worker(worker)
        self.sent.remove_worker(worker)

    def relieve(self, worker: str) -> None:
        """Let a worker that is short of memory keep less: it has freed its programs."""
        self.epochs.relieve(worker)
        self.sent.remove_worker(worker)

    def ended(self, key: Key, finish: str, stimulus_id: str) -> None:
        """End the run of a ``gang`` task that is released or has failed, and free its results.

        A gang that fails has no past: a client may retry it.
        """
        run = self.runs.pop(key, None)
        if run is not None and run.holder is not None:
            self._withdraw(run, stimulus_id)
        if run is not None and not run.outcome.done():
            self.endings.cancel(run, stimulus_id)
        elif run is not None and run.finished:
            free = {"op": "dgpu-free", "key": key, "run_id": run.run_id}
            send(self.scheduler, run.members, free)
        taken = run is not None and run.finished and not run.starts_over
        if taken or finish in ("forgotten", "erred"):
            self.losses.forget(key)
            self.endings.short.discard(key)

    def _withdraw(self, run: Run, stimulus_id: str) -> None:
        """Let a run without tasks wait no more."""
        self.waiting.discard(run)
        for out in self._outs(run):
            self.missed(out.key, stimulus_id)
        unneeded = stop_waiting(self.scheduler, run)
        asyncio.get_running_loop().call_soon(release, self.scheduler, run, unneeded)

    def _leave_to_tasks(self, run: Run) -> None:
        """Run the tasks of a run that waits in vain, if Dask has not done so, nor ended it."""
        current = self.runs.get(run.key)
        gang = self.scheduler.tasks.get(run.key)
        released = gang is not None and gang.state == "waiting" and current is None
        if released or (current is run and not run.outcome.done()):
            self.endings.start_over(run.key, f"dgpu-missed-{run.run_id}")

    @log_errors
    async def _launch(self, run: Run) -> None:
        try:
            try:
                run.less = run.key in self.endings.short
                await run.plan(self.planned)
                program = run.program
                if run.outcome.done():
                    return
                limits = program.limits
                terms = program.transport, limits.timeout, limits.ports
                epoch = self.epochs.get(run.members, *terms)
                self._send(run, epoch)
            finally:
                let_go(self.scheduler, run)
            await watch(self.scheduler, run, self.runs, self.endings.fail)
        except Exception as error:
            failure = GangError(f"{type(error).__name__}: {error}", phase="launch")
            may_be_lost = isinstance(error, OSError)  # a call to a member failed
            self.endings.fail(run, failure, may_be_lost=may_be_lost)

    def _send(self, run: Run, epoch: str) -> None:
        """Start all members.

        Nothing is awaited between the launches: all streams must have gangs in the same order.
        """
        restrict(self.scheduler, run)
        outs = outs_of(self.scheduler, run)
        run.epoch = epoch
        profiled = bool(recorders(self.scheduler))
        for rank, member in enumerate(run.members):
            message = run.launch_message(rank, epoch, profiled) | self.sent.new(member, run)
            self.scheduler.worker_send(member, message | {"outs": outs.get(member, [])})
        self.staging.taken(run.stage_keys())
