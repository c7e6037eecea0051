"""The scheduler's side of a profiler: a plugin that is there only while somebody profiles."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import time
from typing import TYPE_CHECKING, Any

from distributed.diagnostics.plugin import SchedulerPlugin

from dask_dgpu.errors import GangError
from dask_dgpu.runtime import tasks
from dask_dgpu.runtime.execute import Span
from dask_dgpu.runtime.recording import Found, Recording
from dask_dgpu.runtime.scheduler.messages import MEASUREMENT, RUNS
from graph_opt.dask_graph.emit import is_gang
from graph_opt.dask_graph.internals import Task

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState

    from dask_dgpu.runtime.scheduler.run import Run

Key = Any

HANDOVER = "blocks to and from gangs"
"""The operation of ``stage`` and ``out`` tasks."""


@dataclass
class _Reported:
    """What the ranks of a run have reported so far: spans by worker, details by output."""

    spans: dict[str, Sequence[Span]] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)


class Recorder(SchedulerPlugin):
    """Records gangs and tasks for a ``client``, until it is removed or that client leaves."""

    idempotent = False

    def __init__(self, name: str, client: str) -> None:
        self.name = name
        self.client = client

    async def start(self, scheduler: Scheduler) -> None:
        """Begin."""
        self.scheduler = scheduler
        self.recording = Recording()
        self.began = time()
        self._reported: dict[int, _Reported] = {}

    def finished(
        self, run: Run, worker: str, spans: Sequence[Span], details: Mapping[str, bytes]
    ) -> None:
        """Note the steps of a finished rank; the last one adds the gang."""
        reported = self._reported.setdefault(run.run_id, _Reported())
        reported.spans[worker] = spans
        reported.details |= {output: _opened(detail) for output, detail in details.items()}
        if len(reported.spans) == len(run.members):
            del self._reported[run.run_id]
            found = reported.spans, reported.details
            self.recording.add_gang(run.launch, run.collectives, *found)

    def failed(self, run: Run, error: GangError, spans: Sequence[Span]) -> None:
        """Add a gang that failed, in the last of these spans if there are any."""
        self._reported.pop(run.run_id, None)
        self.recording.add_failed_gang(run.launch, error.worker or "", spans, error.reason)

    def transition(self, key: Key, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Add a Dask task when it is done."""
        done = start == "processing" and finish in ("memory", "erred")
        startstops = kwargs.get("startstops") if done else None
        if not startstops or kwargs.get("thread") == RUNS or is_gang(key):
            return
        task = self.scheduler.tasks.get(key)
        if task is None or str(task.prefix.name).startswith(MEASUREMENT):
            return
        failure = kwargs.get("exception_text", "") if finish == "erred" else None
        where = kwargs["worker"], f"thread {kwargs.get('thread')}"
        self.recording.add_task(*where, _operation(task), startstops, failure)

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """End with the client, which may not have said so."""
        if client == self.client:
            scheduler.plugins.pop(self.name, None)


def recorders(scheduler: Scheduler) -> list[Recorder]:
    """Return those of all profilers, also of other clients."""
    return [plugin for plugin in scheduler.plugins.values() if isinstance(plugin, Recorder)]


def recorded(name: str, end: bool, dask_scheduler: Scheduler) -> Found | None:
    """Return what a recorder has recorded, ``None`` without it; ``end`` removes it."""
    recorder: Any = dask_scheduler.plugins.get(name)
    if recorder is None:
        return None
    if end:
        dask_scheduler.remove_plugin(name)
    workers = dask_scheduler.workers
    names = {address: str(state.name) for address, state in workers.items()}
    ordered = sorted(names.items(), key=lambda named: (len(named[1]), named[1]))  # 9 before 10
    lanes = {address: f"worker {name}" for address, name in ordered}
    running = sum(len(state.processing) for state in workers.values())
    found: Found = recorder.recording.found(recorder.began, time(), lanes, running)
    return found


def _operation(task: TaskState) -> str:
    spec = task.run_spec
    function = spec.func if isinstance(spec, Task) else None
    return HANDOVER if function in (tasks.stage, tasks.out) else str(task.prefix.name)


def _opened(detail: bytes) -> Any:
    """Return a detail, ``None`` if its package is not here."""
    try:
        return pickle.loads(detail)
    except Exception:  # unpickling runs the detail's own code
        return None
