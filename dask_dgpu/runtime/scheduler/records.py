"""What is observed of gangs: the steps of ranks, for Dask's task stream, profilers and ``explain``.

A profiler's plugin is there only while somebody profiles.
"""

from __future__ import annotations

import pickle
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.diagnostics.task_stream import TaskStreamPlugin

from dask_dgpu.errors import GangError
from dask_dgpu.runtime import tasks
from dask_dgpu.runtime.execute import Span
from dask_dgpu.runtime.program import Launch
from dask_dgpu.runtime.recording import Found, Recording, Step, words_of
from dask_dgpu.runtime.scheduler.states import MEASUREMENT, RUNS
from graph_opt.dask_graph.internals import Task
from graph_opt.model.names import is_gang, label
from graph_opt.model.piece import Wanted

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState

    from dask_dgpu.runtime.scheduler.run import Run

Key = Any

KEPT_RUNS = 64

HANDOVER = "blocks to and from gangs"
"""The operation of ``stage`` and ``out`` tasks."""


@dataclass
class _Record:
    """A run: of each step the span of the slowest rank, and the bytes of all."""

    run_id: int
    launch: Launch
    ranks: int = 0
    slowest: list[Span] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    sent_bytes: list[int] = field(default_factory=list)
    details: dict[str, bytes] = field(default_factory=dict)

    def add(self, spans: Sequence[Span]) -> None:
        """Add a rank; this delays the answer to the client."""
        self.ranks += 1
        if self.ranks == 1:
            self.slowest = list(spans)
            self.nbytes = [span.nbytes for span in spans]
            self.sent_bytes = [span.sent_bytes for span in spans]
            return
        both = zip(self.slowest, spans, strict=True)
        self.slowest = [a if a.seconds >= b.seconds else b for a, b in both]
        self.nbytes = [a + b.nbytes for a, b in zip(self.nbytes, spans, strict=True)]
        self.sent_bytes = [a + b.sent_bytes for a, b in zip(self.sent_bytes, spans, strict=True)]

    def result(self) -> tuple[Step, ...]:
        """Return the steps with what their operations returned."""
        rows = zip(self.slowest, self.nbytes, self.sent_bytes, strict=True)
        return tuple(
            replace(Step.of(span), nbytes=n, sent_bytes=sent, detail=self.details.get(span.name))
            for span, n, sent in rows
        )


class Records:
    """The steps of the last runs of gangs; profilers, Dask's task stream and events get all."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._records: dict[Key, _Record] = {}

    def add(
        self,
        run: Run,
        worker: str,
        spans: Sequence[Span],
        details: Mapping[str, bytes] = MappingProxyType({}),
    ) -> None:
        """Add the steps of a finished rank, and the details of its operations, pickled."""
        _show(self.scheduler, run.run_id, worker, spans)
        for recorder in recorders(self.scheduler):
            recorder.finished(run, worker, spans, details)
        record = self._records.pop(run.key, None)
        if record is None or record.run_id != run.run_id:
            launch, program = run.launch, run.launch.program.bare  # without functions
            record = _Record(run.run_id, replace(launch, program=program, plain=None))
        record.add(spans)
        record.details.update(details)
        self._records[run.key] = record
        while len(self._records) > KEPT_RUNS:
            del self._records[next(iter(self._records))]
        if record.ranks == len(run.members):
            event = {
                "gang": run.key[0],
                "run_id": run.run_id,
                "ranks": record.ranks,
                "steps": len(record.slowest),
                "seconds": sum(span.seconds for span in record.slowest),
                "nbytes": sum(record.nbytes),
            }
            self.scheduler.log_event(RUNS, event)

    def last(self, wanted: Wanted) -> tuple[Step, ...]:
        """Return the steps of the last run for these blocks, if they are kept."""
        found = [record for record in self._records.values() if _has(record.launch.outputs, wanted)]
        return found[-1].result() if found else ()

    def made(self, names: Collection[str]) -> list[tuple[tuple[str, ...], tuple[Step, ...]]]:
        """Return users' words and the steps of the last runs that made arrays of these names."""
        last = {
            name: record
            for record in self._records.values()
            for name, _ in record.launch.outputs
            if name in names
        }
        records = {record.run_id: record for record in last.values()}
        return [(tuple(words_of(r.launch)), r.result()) for r in records.values()]

    def detail(self, output: str) -> bytes | None:
        """Return the detail of the last operation with this output, if it is kept."""
        found = [record.details.get(output) for record in self._records.values()]
        return next(filter(None, reversed(found)), None)


def _has(made: Wanted, wanted: Wanted) -> bool:
    """Whether a run made these blocks; it may have made other arrays too."""
    if made == wanted:
        return True
    known = dict(made)
    return bool(wanted) and all(set(blocks) <= set(known.get(name, ())) for name, blocks in wanted)


def _show(scheduler: Scheduler, run_id: int, worker: str, spans: Sequence[Span]) -> None:
    """Show each step of a rank as a task of its worker."""
    for plugin in scheduler.plugins.values():
        if isinstance(plugin, TaskStreamPlugin):
            for span in spans:
                plugin.transition(
                    (label(span.name), run_id),
                    "processing",
                    "memory",
                    worker=worker,
                    thread=RUNS,
                    status="OK",
                    type="",
                    nbytes=span.nbytes,
                    startstops=[{"action": span.action, "start": span.start, "stop": span.stop}],
                )


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
            self.recording.add_gang(run.launch, run.planned.collectives, *found)

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
