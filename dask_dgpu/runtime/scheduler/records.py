"""The steps of ranks, for Dask's task stream, for profilers, and for the last runs of gangs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from distributed.diagnostics.task_stream import TaskStreamPlugin

from dask_dgpu.runtime.observer import Span, Step
from dask_dgpu.runtime.scheduler.messages import RUNS
from dask_dgpu.runtime.scheduler.recorder import recorders
from graph_opt.model.layout import label
from graph_opt.model.piece import Wanted

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

    from dask_dgpu.runtime.scheduler.run import Run

Key = Any

KEPT_RUNS = 64


@dataclass
class _Record:
    run_id: int
    wanted: Wanted
    ranks: int = 0
    steps: list[Step] = field(default_factory=list)
    details: dict[str, bytes] = field(default_factory=dict)

    def add(self, spans: Sequence[Span]) -> None:
        self.ranks += 1
        mine = list(map(Step.of, spans))
        both = zip(self.steps, mine, strict=True)
        self.steps = [a.joined(b) for a, b in both] if self.steps else mine


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
            record = _Record(run.run_id, run.program.outputs)
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
                "steps": len(record.steps),
                "seconds": sum(step.seconds for step in record.steps),
                "nbytes": sum(step.nbytes for step in record.steps),
            }
            self.scheduler.log_event(RUNS, event)

    def last(self, wanted: Wanted) -> tuple[Step, ...]:
        """Return the steps of the last run for these blocks, if they are kept."""
        found = [record for record in self._records.values() if record.wanted == wanted]
        if not found:
            return ()
        details = {label(output): detail for output, detail in found[-1].details.items()}
        return tuple(replace(step, detail=details.get(step.name)) for step in found[-1].steps)

    def detail(self, output: str) -> bytes | None:
        """Return the detail of the last operation with this output, if it is kept."""
        found = [record.details.get(output) for record in self._records.values()]
        return next(filter(None, reversed(found)), None)


def _show(scheduler: Scheduler, run_id: int, worker: str, spans: Sequence[Span]) -> None:
    """Show each step of a rank as a task of its worker."""
    for plugin in scheduler.plugins.values():
        if isinstance(plugin, TaskStreamPlugin):
            for span in spans:
                plugin.transition(
                    (span.name, run_id),
                    "processing",
                    "memory",
                    worker=worker,
                    thread=RUNS,
                    type="",
                    nbytes=span.nbytes,
                    startstops=[{"action": span.action, "start": span.start, "stop": span.stop}],
                )
