"""The scheduler's side of gangs: who takes part, in which order, and what if one is lost.

The life of a run::

    gang task calls   -> open: members, epoch, ticket -> launch on every member
    members report    -> finished | failed | stale
    a member is lost  -> archived; the others give up; Dask reruns stage, gang, out
    gang key released -> results that nobody took are freed

A gang is known by the key of its ``gang`` task; each attempt at it is a run, with
an id of its own, and messages of earlier runs are ignored.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
from itertools import count
from typing import TYPE_CHECKING, Any, cast

from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.utils import log_errors

from dask_dgpu.errors import GangError
from dask_dgpu.runtime.epoch import Epochs
from dask_dgpu.runtime.losses import Losses
from dask_dgpu.runtime.observer import Span
from dask_dgpu.runtime.program import plans
from dask_dgpu.runtime.run import Run
from dask_dgpu.runtime.staging import Staging
from dask_dgpu.runtime.stream import publish
from dask_dgpu.runtime.tasks import PLUGIN
from dask_dgpu.runtime.watch import watch
from dask_dgpu.runtime.worker import GangWorkerPlugin
from graph_opt.emit import GANG, STAGE

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState, WorkerState

logger = logging.getLogger(__name__)

Key = Any

ANSWER_SECONDS = 2.0
"""How long the worker of a failed gang's task has to report the failure itself."""


class GangSchedulerPlugin(SchedulerPlugin):
    """Forms gangs, launches them, and starts them over.

    Parameters
    ----------
    device : str
        The kind of device that the workers use, ``"cpu"`` or ``"cuda"``.
    """

    name = PLUGIN
    idempotent = True

    def __init__(self, device: str) -> None:
        self.device = device

    async def start(self, scheduler: Scheduler) -> None:
        """Listen to workers, and give every worker, now and later, its plugin."""
        self.scheduler = scheduler
        self.runs: dict[Key, Run] = {}
        self.epochs = Epochs(scheduler)
        self.staging = Staging(scheduler)
        self.losses = Losses(scheduler)
        self.ended: tuple[str, list[Run]] = ("", [])
        self.tickets = count()
        self.run_ids = count()
        scheduler.handlers.update({"dgpu_gang": self.gang, "dgpu_warm_up": self.warm_up})
        scheduler.stream_handlers.update(
            {"dgpu-finished": self.finished, "dgpu-failed": self.failed, "dgpu-stale": self.stale}
        )
        await scheduler.register_worker_plugin(
            None, pickle.dumps(GangWorkerPlugin(self.device)), name=PLUGIN, idempotent=True
        )

    # calls of workers and clients

    async def gang(
        self, key: Key, program: bytes, staged: list[list[tuple[Key, str]]]
    ) -> dict[str, Any]:
        """Run a gang to its end; called by its ``gang`` task, again after a loss."""
        if key not in self.scheduler.tasks:  # cancelled while the call was on its way
            return {"outcome": "restarted"}
        run = self.runs.get(key)
        if run is None or run.outcome.done():
            run = Run(key, next(self.run_ids), pickle.loads(program), program, staged)
            self.runs[key] = run
            self._open(run)
        await asyncio.wait([run.outcome])
        return run.outcome.result()

    async def warm_up(self, device: str, transport: str, timeout: float) -> str:
        """Connect all workers ahead of the first gang, if it uses the device that this returns."""
        members = tuple(self.scheduler.workers)
        if members and device == self.device:
            self.warming = asyncio.ensure_future(self.epochs.warm_up(members, transport, timeout))
        return self.device

    # opening a run

    def _open(self, run: Run) -> None:
        failure = self.losses.too_many(run)
        if failure is not None:
            run.fail(failure)
            return
        run.members = self._members(run)
        if any(member not in self.scheduler.workers for member in run.members):
            self._start_over(run, f"dgpu-stale-{run.run_id}")
            return
        run.task = asyncio.ensure_future(self._launch(run))

    def _members(self, run: Run) -> tuple[str, ...]:
        """All workers that the gang's task may use, and those that hold its blocks."""
        allowed = self._allowed(self.scheduler.tasks[run.key])
        members = [
            address
            for address in self.scheduler.workers
            if address in allowed or address in run.holders
        ]
        return (*members, *(run.holders - set(members)))

    def _allowed(self, ts: TaskState) -> set[str]:
        allowed = self.scheduler.valid_workers(ts)
        if allowed is None or (ts.loose_restrictions and not allowed):
            return set(self.scheduler.workers)
        return {ws.address for ws in allowed}

    @log_errors
    async def _launch(self, run: Run) -> None:
        try:
            epoch = await self.epochs.get(run.members)
            while not self.epochs.holds(epoch):
                epoch = await self.epochs.get(run.members)
            if run.outcome.done():
                return
            owners = run.owners()
            placed = plans(run.program, owners, len(run.members)).placed(run.program)
            self._restrict(run, placed)
            # nothing is awaited below: the order of the streams is that of the tickets
            run.epoch = epoch.name
            ticket = next(self.tickets)
            for rank, member in enumerate(run.members):
                self.scheduler.worker_send(member, run.launch_message(rank, ticket, epoch, owners))
            self.staging.taken(run.stage_keys())
            await watch(self.scheduler, run, self._fail)
        except Exception as error:
            failure = GangError(f"{type(error).__name__}: {error}", phase="launch")
            if isinstance(error, OSError):  # a member that was called may be lost
                self._fail_unless_lost(run, failure)
            else:
                self._fail(run, failure)

    def _restrict(self, run: Run, placed: dict[Key, int]) -> None:
        """Have each block of the result taken by the worker that makes it."""
        for ts in self.scheduler.tasks[run.key].dependents:
            rank = placed[run.program.block(cast(tuple[Any, ...], ts.key))]
            ts.loose_restrictions = False
            self.scheduler.set_restrictions({ts.key: {run.members[rank]}})

    # reports of ranks

    def finished(self, key: Key, run_id: int, spans: list[Any], worker: str) -> None:
        """Note that a rank is done; with the last one the run is."""
        run = self._current(key, run_id)
        if run is not None:
            publish(self.scheduler, key, run_id, worker, [Span(*span) for span in spans])
            run.awaited.discard(worker)
            if not run.awaited:
                run.finish()
                self.losses.forget(key)

    def failed(self, key: Key, run_id: int, lost: bool, error: bytes, worker: str) -> None:
        """Give a run up for the error of a rank, unless a lost worker explains it."""
        run = self._current(key, run_id)
        if run is None:
            return
        failure: GangError = pickle.loads(error)
        if lost:
            self._fail_unless_lost(run, failure)
        else:
            self._fail(run, failure)

    def stale(self, key: Key, run_id: int, missing: str, worker: str) -> None:
        """Start over when a member does not have a block that it should hold."""
        run = self._current(key, run_id)
        if run is not None:
            self.losses.add(run, worker, "stage")
            self._start_over(run, f"dgpu-stale-{run_id}")

    def _current(self, key: Key, run_id: int) -> Run | None:
        run = self.runs.get(key)
        return run if run and run.run_id == run_id and not run.outcome.done() else None

    # the ends of a run

    def _fail(self, run: Run, error: GangError) -> None:
        if not run.outcome.done():
            run.fail(error)
            self._abandon(run, str(error))
            asyncio.get_running_loop().call_later(ANSWER_SECONDS, self._insist, run, error)

    def _fail_unless_lost(self, run: Run, error: GangError) -> None:
        """Give a run up unless a member is lost: a broken connection is noticed before that."""
        loop = asyncio.get_running_loop()
        loop.call_later(run.program.limits.grace, self._fail, run, error)

    def _insist(self, run: Run, error: GangError) -> None:
        """Fail the gang's task here if its worker does not take the answer."""
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
            exception=pickle.dumps(error),
            exception_text=repr(error),
        )
        self.scheduler.transitions(recommendations, stimulus_id=stimulus_id)

    def _abandon(self, run: Run, reason: str) -> None:
        """Have every member that is left give up, and never use the communicator again.

        Other runs under way on that communicator are void with it, and start over
        without fault of theirs. They do so after this: Dask may be amid transitions.
        """
        if run.epoch is None:
            return
        self.epochs.discard(run.members, run.epoch)
        for member in run.members:
            if member in self.scheduler.workers:
                self.scheduler.worker_send(member, run.give_up_message(reason))
        loop = asyncio.get_running_loop()
        for other in self.runs.values():
            if other.epoch == run.epoch and not other.outcome.done():
                loop.call_soon(self._start_over_if_void, other, f"dgpu-abandoned-{run.run_id}")

    def _start_over_if_void(self, run: Run, stimulus_id: str) -> None:
        if self.runs.get(run.key) is run and not run.outcome.done():
            self._start_over(run, stimulus_id)

    def _start_over(self, run: Run, stimulus_id: str) -> None:
        """Have Dask run the gang again, from the staging of its blocks on."""
        if not run.outcome.done():
            run.restart()
            self._abandon(run, "it starts over")
        ts = self.scheduler.tasks.get(run.key)
        if ts is None:
            return
        if any(out.state == "erred" for out in ts.dependents):
            return
        released = [out.key for out in ts.dependents if out.state not in ("memory", "released")]
        released += [ts.key, *(stage.key for stage in ts.dependencies)]
        recommendations: dict[Key, Any] = dict.fromkeys(released, "released")
        logger.info("gang %s starts over: %s", run.program.name, stimulus_id)
        self.scheduler.transitions(recommendations, stimulus_id=stimulus_id)
        self.scheduler.stimulus_queue_slots_maybe_opened(stimulus_id=stimulus_id)

    # what Dask tells its plugins

    def remove_worker(
        self, scheduler: Scheduler, worker: str, *, stimulus_id: str, **kwargs: Any
    ) -> None:
        """Start over every gang that a lost worker was a member of."""
        self.epochs.remove_worker(worker)
        self.staging.remove_worker(worker)
        # the gang task may have been on the lost worker itself, and its run be ended already
        ended = self.ended[1] if self.ended[0] == stimulus_id else []
        for run in [*self.runs.values(), *ended]:
            if worker in run.members:
                self.losses.add(run, worker, "stage" if run.epoch is None else "program")
                self._start_over(run, stimulus_id)

    def transition(
        self, key: Key, start: str, finish: str, *args: Any, stimulus_id: str, **kwargs: Any
    ) -> None:
        """Follow staged blocks, and end a run whose task is gone."""
        name = key[0] if type(key) is tuple else None
        if type(name) is not str or not name.startswith("dgpu-"):
            return
        if name.startswith(STAGE):
            self.staging.moved(key, finish, kwargs.get("worker"))
        elif name.startswith(GANG) and finish in ("released", "forgotten", "erred"):
            run = self.runs.pop(key, None)
            if run is not None and not run.outcome.done():
                run.restart()
                self._abandon(run, "it was cancelled")
                before = self.ended[1] if self.ended[0] == stimulus_id else []
                self.ended = (stimulus_id, [*before, run])
            elif run is not None and run.finished:
                self._free(run)
            if finish == "forgotten":
                self.losses.forget(key)

    def _free(self, run: Run) -> None:
        for member in run.members:
            if member in self.scheduler.workers:
                message = {"op": "dgpu-free", "key": run.key, "run_id": run.run_id}
                self.scheduler.worker_send(member, message)

    def valid_workers_downscaling(
        self, scheduler: Scheduler, workers: list[WorkerState]
    ) -> list[WorkerState]:
        """Keep adaptive scaling away from the members of running gangs."""
        busy = {
            member for run in self.runs.values() if not run.outcome.done() for member in run.members
        }
        return [ws for ws in workers if ws.address not in busy]

    def restart(self, scheduler: Scheduler) -> None:
        """Forget everything: the cluster starts afresh."""
        for run in self.runs.values():
            if not run.outcome.done():
                run.restart()
        self.runs.clear()
        self.staging = Staging(scheduler)
        self.losses = Losses(scheduler)
        self.ended = ("", [])
        self.epochs.clear()
