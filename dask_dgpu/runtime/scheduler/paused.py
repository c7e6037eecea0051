"""Gangs on paused workers: those whose results are stuck there, and those that cannot begin.

Dask pauses a worker whose memory is nearly full: it runs no further task until memory is free. But
staged blocks are only freed by their gang, which may wait for the tasks of that worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from typing import TYPE_CHECKING, Any

from dask.utils import format_bytes
from distributed.core import Status

from dask_dgpu.errors import GangError
from dask_dgpu.runtime.program import Launch
from dask_dgpu.runtime.scheduler.blocks import Runs, Staging, free_stuck
from dask_dgpu.runtime.scheduler.endings import fail_waiting, launch_of
from graph_opt.dask_graph.emit import is_gang

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState, WorkerState

Key = Any


class Paused:
    """Lets other workers run the tasks of paused ones, and ends gangs if that does not help."""

    def __init__(self, scheduler: Scheduler, runs: Runs, staging: Staging) -> None:
        self.scheduler = scheduler
        self.runs = runs
        self.staging = staging
        self._since: dict[Key, float] = {}

    def check(self) -> None:
        """Look for such gangs, once in a while."""
        free_stuck(self.scheduler, self.runs)
        now, stuck = monotonic(), dict(self._stuck())
        self._since = {gang.key: self._since.get(gang.key, now) for gang in stuck}
        for gang, worker in stuck.items():
            launch = launch_of(gang)
            if launch is None:
                continue
            waited, limits = now - self._since[gang.key], launch.program.limits
            if waited >= limits.timeout:
                self._fail(gang, launch, worker)
            elif waited >= limits.grace and self.scheduler.running:
                self._hand_on(gang, worker)

    def _stuck(self) -> Iterator[tuple[TaskState, WorkerState]]:
        """Yield gangs that have blocks on a paused worker and wait for its tasks."""
        for key, address in self.staging.workers.items():
            ts, worker = self.scheduler.tasks.get(key), self.scheduler.workers.get(address)
            if ts is None or worker is None or worker.status is not Status.paused:
                continue
            for gang in ts.dependents if ts.state == "memory" else ():
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

    def _hand_on(self, gang: TaskState, worker: WorkerState) -> None:
        """Let other workers run the tasks for which a gang waits."""
        tasks: dict[Key, Any] = {ts.key: "released" for ts in self._unable(gang, worker)}
        self.scheduler.transitions(tasks, stimulus_id=f"dgpu-paused-{monotonic()}")

    def _fail(self, gang: TaskState, launch: Launch, worker: WorkerState) -> None:
        nbytes = sum(
            ts.get_nbytes()
            for stage in gang.dependencies
            if self.staging.workers.get(stage.key) == worker.address
            for ts in stage.dependencies
        )
        reason = (
            f"{launch.title} cannot begin: Dask has paused a worker, which holds "
            f"{format_bytes(nbytes)} of its blocks; set dgpu.memory.limit to less"
        )
        error = GangError(reason, worker=worker.address, phase="stage")
        fail_waiting(self.scheduler, gang, error, f"dgpu-paused-{monotonic()}")
