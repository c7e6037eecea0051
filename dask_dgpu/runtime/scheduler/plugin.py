"""The scheduler's side of gangs: their members, their order, and the loss of members.

The life of a run::

    gang task calls   -> begin: members, epoch, plans -> launch on every member
    members report    -> finished | failed | stale
    out tasks         -> take blocks on their workers, or ask for the worker
    a member is lost  -> the others give up; Dask reruns stage, gang, out
    gang key released -> remaining results are freed

The key of its ``gang`` task identifies a gang. Each attempt is a run with a new id; messages of
earlier runs are ignored.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Collection
from itertools import count
from typing import TYPE_CHECKING, Any

from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.utils import offload
from tornado.ioloop import PeriodicCallback
from zict import LRU

from dask_dgpu.runtime.execute import Span
from dask_dgpu.runtime.scheduler.launch import Launches, NewArrays, hand_over, ready, restrict
from dask_dgpu.runtime.scheduler.losses import Endings
from dask_dgpu.runtime.scheduler.rates import Rates
from dask_dgpu.runtime.scheduler.records import Records
from dask_dgpu.runtime.scheduler.run import Epochs, Run, by_host
from dask_dgpu.runtime.scheduler.states import Stored, known_as, runs_on
from dask_dgpu.runtime.tasks import PLUGIN
from dask_dgpu.runtime.worker.plugin import GangWorkerPlugin
from graph_opt.model.names import is_gang, is_stage

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, WorkerState

Key = Any

CHECKS_MS = 1000.0

KEPT_BYTES = 64 * 2**20
"""Bytes of optimized graphs that are kept for others with the same structure."""

ENDED = ("released", "forgotten", "erred")


class GangSchedulerPlugin(SchedulerPlugin):
    """Forms, launches and restarts gangs of workers on one kind of device."""

    name = PLUGIN
    idempotent = True

    def __init__(self, device: str) -> None:
        self.device = device

    async def start(self, scheduler: Scheduler) -> None:
        """Register handlers, and the plugin of all present and future workers."""
        self.scheduler = scheduler
        self.runs: dict[Key, Run] = {}
        self.epochs = Epochs(scheduler, self.runs)
        self.records = Records(scheduler)
        self.endings = Endings(scheduler, self.runs, self.epochs)
        self.launches = Launches(scheduler, self.endings)
        self.run_ids = count()
        self.rates = Rates(scheduler, self.epochs)
        self.new_arrays = NewArrays(scheduler)
        self.numbers: dict[Key, Any] = {}  # results in memory that have come with a report
        self.structures: LRU[Any, Any] = LRU(KEPT_BYTES, {}, weight=lambda _, kept: kept.nbytes)
        scheduler.handlers.update(
            {"dgpu_gang": self.gang, "dgpu_where": self.where, "dgpu_warm_up": self.warm_up}
        )
        scheduler.handlers |= {"dgpu_members": self.members, "dgpu_session": self.session}
        scheduler.handlers["gather"] = self.gather
        handlers = scheduler.stream_handlers
        handlers |= {"dgpu-finished": self.finished, "dgpu-failed": self.failed}
        handlers |= {"dgpu-stale": self.stale, "dgpu-broken": self.endings.broken}
        handlers |= {"dgpu-lacks": self.launches.lacks, "dgpu-share": self.epochs.share}
        handlers["dgpu-relieve"] = lambda worker: self.launches.relieve(worker)
        await scheduler.register_worker_plugin(
            None, pickle.dumps(GangWorkerPlugin(self.device)), name=PLUGIN, idempotent=True
        )
        check = PeriodicCallback(self._check, CHECKS_MS)
        scheduler.periodic_callbacks["dgpu-check"] = check
        check.start()

    def _check(self) -> None:
        """Look for gangs that wait in vain, if one may."""
        paused = len(self.scheduler.workers) - len(self.scheduler.running)
        if paused or self.endings.past or self.endings.since:
            self.endings.check()

    # calls of workers and clients

    async def gang(
        self, key: Key, launch: bytes, staged: list[list[tuple[Key, str]]], worker: str
    ) -> dict[str, Any]:
        """Run a gang to its end; its ``gang`` task calls this, again after a loss."""
        opened = await offload(pickle.loads, launch)
        worker = known_as(self.scheduler, worker)
        staged = [[(b, known_as(self.scheduler, at)) for b, at in tokens] for tokens in staged]
        if not runs_on(self.scheduler, key, worker):  # cancelled meanwhile
            return {"outcome": "restarted"}
        run = self.runs.get(key)
        if run is None or run.outcome.done():
            run = Run(key, next(self.run_ids), opened, staged)
            self.launches.begin(run)
        return await run.answer(self.scheduler)

    async def where(
        self, key: Key, run_id: int, block: Key, out: Key, worker: str, missing: str
    ) -> str | None:
        """Return the worker with a block of a run, for an ``out`` on a worker without it.

        If ``missing``, a worker without the block, should have it, the gang restarts.
        """
        worker = known_as(self.scheduler, worker)
        missing = missing and known_as(self.scheduler, missing)
        run = self.runs.get(key)
        gang = self.scheduler.tasks.get(key)
        if gang is None or gang.state != "memory" or not runs_on(self.scheduler, out, worker):
            return None  # all of this is void already
        if run is not None and run.run_id == run_id and run.finished:
            place = run.worker_of(tuple(block))
            if place != missing:
                return place
            if not run.starts_over:  # several tasks may miss blocks at once
                run.starts_over = True
                self.endings.lost(run, place, "out", "a block")
        stimulus_id = f"dgpu-missing-{run_id}"
        asyncio.get_running_loop().call_soon(self.endings.start_over, key, stimulus_id)
        return None

    async def warm_up(self, device: str, connect: bool, kind: str | None, **terms: Any) -> str:
        """Connect all workers before the first gang, if ``device`` is the one that this returns.

        Measure the rates of a ``kind`` of cluster, unless they are known. ``terms`` are those of
        :meth:`Epochs.get`.
        """
        workers = tuple(self.scheduler.workers)
        if connect and workers and device == self.device:
            self.epochs.connect(workers, **terms)
            if kind is not None and kind not in self.rates.known:
                self.rates.start(kind=kind, device=device, **terms)
        return self.device

    def members(self) -> tuple[str, ...]:
        """Return the workers whose ranks serve calls: all, for each may have blocks."""
        return by_host(self.scheduler.workers)

    async def session(self, caller: str, members: list[str], **terms: Any) -> None:
        """Let members serve the calls of a client; see :meth:`Epochs.serve`."""
        self.epochs.serve(caller, tuple(members), **terms)

    async def gather(
        self, keys: Collection[Key], serializers: list[str] | None = None
    ) -> dict[str, Any]:
        """Gather results as Dask does, but numbers of gangs without their workers."""
        known = {key: self.numbers[key] for key in keys if key in self.numbers}
        left = [key for key in keys if key not in known]
        answer: Any = {"status": "OK", "data": {}}
        if left:
            answer = await self.scheduler.gather(left, serializers)
        if answer["status"] == "OK":
            answer["data"] |= known
        return answer

    # reports of ranks

    def finished(
        self,
        key: Key,
        run_id: int,
        spans: list[Any],
        details: dict[str, bytes],
        stored: list[tuple[Key, tuple[int, bytes, str]]],
        numbers: dict[Key, Any],
        worker: str,
    ) -> None:
        """Note that a rank is done, and the results in its memory; the last one ends the run."""
        run = self._current(key, run_id)
        if run is not None:
            run.spans[worker] = [Span(*span) for span in spans]
            run.details |= details
            run.stored |= {out: Stored(worker, *facts) for out, facts in stored}
            run.numbers |= numbers
            run.awaited.discard(worker)
            if not run.awaited:
                run.end("finished")
                hand_over(self.scheduler, run)
                tasks = {key: self.scheduler.tasks.get(key) for key in run.numbers}
                in_memory = [key for key, ts in tasks.items() if ts and ts.state == "memory"]
                self.numbers |= {key: run.numbers[key] for key in in_memory}
                self.records.add(run)  # the client has the answer already

    def failed(self, key: Key, run_id: int, lost: bool, error: bytes, worker: str) -> None:
        """Give up a run after an error of a rank, unless a lost worker explains it."""
        run = self._current(key, run_id)
        if run is not None:
            self.endings.fail(run, pickle.loads(error), may_be_lost=lost)

    def stale(self, key: Key, run_id: int, missing: str, worker: str) -> None:
        """Restart a gang if a member lacks a block."""
        run = self._current(key, run_id)
        if run is not None:
            if run.holder is None:  # else it may be spilled
                self.endings.lost(run, worker, "stage", "a block")
            self.endings.start_over(key, f"dgpu-stale-{run_id}")

    def _current(self, key: Key, run_id: int) -> Run | None:
        run = self.runs.get(key)
        return run if run and run.run_id == run_id and not run.outcome.done() else None

    # the hooks of a scheduler plugin

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Let a new worker compute blocks of new arrays."""
        self.new_arrays.add_worker()

    def remove_worker(
        self, scheduler: Scheduler, worker: str, *, stimulus_id: str, **kwargs: Any
    ) -> None:
        """Restart the gangs of a lost worker."""
        self.epochs.remove_worker(worker)
        self.launches.remove_worker(worker)
        for run in list(self.runs.values()):
            if worker in run.members:
                self.endings.lost(run, worker, "stage" if run.epoch is None else "program")
                self.endings.start_over(run.key, stimulus_id)

    def update_graph(
        self,
        scheduler: Scheduler,
        *,
        keys: set[Key],
        tasks: list[Key],
        stimulus_id: str,
        **kwargs: Any,
    ) -> None:
        """Launch gangs that can run; place new arrays, and ``out`` tasks of running gangs."""
        gangs = list(filter(is_gang, tasks))
        self.new_arrays.place(keys, gangs)
        for key in gangs:
            run = self.runs.get(key)
            if run is not None and run.epoch is not None:
                restrict(scheduler, run)
        for run in ready(scheduler, keys, self.runs, self.run_ids) if gangs else ():
            self.launches.begin_at_once(run, stimulus_id)

    def transition(
        self, key: Key, start: str, finish: str, *args: Any, stimulus_id: str, **kwargs: Any
    ) -> None:
        """Follow placed, staged and awaited blocks, and end the run of a released task."""
        if start == "memory":
            self.numbers.pop(key, None)
        self.new_arrays.moved(key, finish)
        if key in self.launches.waiting:
            if finish == "memory":
                self.launches.arrived(key)
            elif finish in ENDED:
                self.launches.missed(key, stimulus_id)
        if is_stage(key):
            self.launches.staging.moved(key, finish, kwargs.get("worker"))
        if not is_gang(key):
            return
        run = self.runs.get(key)
        if finish == "memory" and not (run and run.finished):
            # the answer to an earlier call, whose blocks are freed
            loop = asyncio.get_running_loop()
            loop.call_soon(self.endings.start_over, key, f"dgpu-outdated-{stimulus_id}")
        elif finish in ENDED:
            self.launches.ended(key, finish, stimulus_id)

    def valid_workers_downscaling(
        self, scheduler: Scheduler, workers: list[WorkerState]
    ) -> list[WorkerState]:
        """Protect the members of running gangs from adaptive scaling."""
        busy = {
            member for run in self.runs.values() if not run.outcome.done() for member in run.members
        }
        return [ws for ws in workers if ws.address not in busy]

    def restart(self, scheduler: Scheduler) -> None:
        """Forget everything for a restart of the cluster."""
        for run in self.runs.values():
            run.end("restarted")
        self.runs.clear()
        self.launches = Launches(scheduler, self.endings)
        self.new_arrays = NewArrays(scheduler)
        self.numbers.clear()
        self.endings.past.clear()
        self.epochs.clear()
        self.rates.close()

    async def close(self) -> None:
        """Stop to measure."""
        self.rates.close()
