"""What is observed of gangs: the steps of ranks, for Dask's task stream, profilers and ``explain``.

A profiler's plugin is there only while somebody profiles.
"""

from __future__ import annotations

import pickle
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from time import time
from typing import TYPE_CHECKING, Any, NamedTuple

from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.diagnostics.task_stream import TaskStreamPlugin

from dask_dgpu.runtime import tasks
from dask_dgpu.runtime.execute import Span
from dask_dgpu.runtime.program import Launch
from dask_dgpu.runtime.recording import Profile, Recording, words_of
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


class _Record(NamedTuple):
    """A finished run, without its functions; the spans are those of all ranks together."""

    run_id: int
    launch: Launch
    spans: list[Span]
    details: Mapping[str, bytes]

    @property
    def steps(self) -> tuple[Span, ...]:
        """The steps by the labels of their layers, with what their operations returned."""
        return tuple(
            replace(span, name=label(span.name), detail=self.details.get(span.name))
            for span in self.spans
        )


class Records:
    """The steps of the last runs of gangs; profilers, Dask's task stream and events get all."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._records: dict[Key, _Record] = {}

    def add(self, run: Run) -> None:
        """Add a run whose ranks have all finished."""
        for worker, spans in run.spans.items():
            _show(self.scheduler, run.run_id, worker, spans)
        for recorder in recorders(self.scheduler):
            recorder.finished(run)
        joined = [Span.joined(ranks) for ranks in zip(*run.spans.values(), strict=True)]
        launch = replace(run.launch, program=run.program.bare, plain=None)
        self._records.pop(run.key, None)
        self._records[run.key] = _Record(run.run_id, launch, joined, run.details)
        if len(self._records) > KEPT_RUNS:
            del self._records[next(iter(self._records))]
        event = {
            "gang": run.key[0],
            "run_id": run.run_id,
            "ranks": len(run.spans),
            "steps": len(joined),
            "seconds": sum(span.seconds for span in joined),
            "nbytes": sum(span.nbytes for span in joined),
        }
        self.scheduler.log_event(RUNS, event)

    def last(self, wanted: Wanted) -> tuple[Span, ...]:
        """Return the steps of the last run for these blocks, if they are kept."""
        records = [
            record for record in self._records.values() if _has(record.launch.outputs, wanted)
        ]
        return records[-1].steps if records else ()

    def made(self, names: Collection[str]) -> list[list[tuple[str, list[Span]]]]:
        """Return the last runs that made arrays of these names: users' words, each with its steps.

        Steps of one operation are together, at the place of its last one.
        """
        last = {
            name: record
            for record in self._records.values()
            for name, _ in record.launch.outputs
            if name in names
        }
        records = {record.run_id: record for record in last.values()}
        return [_by_operation(record) for record in records.values()]

    def detail(self, output: str) -> bytes | None:
        """Return the detail of the last operation with this output, if it is kept."""
        details = [record.details.get(output) for record in self._records.values()]
        return next(filter(None, reversed(details)), None)


def _by_operation(record: _Record) -> list[tuple[str, list[Span]]]:
    launch, steps = record.launch, record.steps
    known = launch.operations or [(word, -1) for word in words_of(launch)]
    operations: dict[tuple[str, int], tuple[str, list[Span]]] = {}
    for i, ((word, number), step) in enumerate(zip(known, steps, strict=False)):
        key = (word, number) if number >= 0 else (word, -1 - i)
        _, before = operations.pop(key, (word, []))
        operations[key] = word, [*before, step]
    return list(operations.values())


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

    def finished(self, run: Run) -> None:
        """Add a gang whose ranks have all finished."""
        details = {output: _opened(detail) for output, detail in run.details.items()}
        self.recording.add_gang(run.launch, run.planned.collectives, run.spans, details)

    def transition(self, key: Key, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Add a Dask task when it is done."""
        done = start == "processing" and finish == "memory"
        startstops = kwargs.get("startstops") if done else None
        if not startstops or kwargs.get("thread") == RUNS or is_gang(key):
            return
        task = self.scheduler.tasks.get(key)
        if task is None or str(task.prefix.name).startswith(MEASUREMENT):
            return
        where = kwargs["worker"], f"thread {kwargs.get('thread')}"
        self.recording.add_task(*where, _operation(task), startstops)

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """End with the client, which may not have said so."""
        if client == self.client:
            scheduler.plugins.pop(self.name, None)


def recorders(scheduler: Scheduler) -> list[Recorder]:
    """Return those of all profilers, also of other clients."""
    return [plugin for plugin in scheduler.plugins.values() if isinstance(plugin, Recorder)]


def recorded(name: str, end: bool, dask_scheduler: Scheduler) -> Profile | None:
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
    recording: Profile = recorder.recording.profile(recorder.began, time(), lanes, running)
    return recording


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
