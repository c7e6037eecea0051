"""The steps of ranks, for Dask's task stream, for profilers, and for the last runs of gangs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from distributed.diagnostics.task_stream import TaskStreamPlugin

from dask_dgpu.runtime.execute import Span
from dask_dgpu.runtime.program import Launch
from dask_dgpu.runtime.recording import Step, words_of
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
        details = {label(output): detail for output, detail in self.details.items()}
        rows = zip(self.slowest, self.nbytes, self.sent_bytes, strict=True)
        return tuple(
            replace(Step.of(span), nbytes=n, sent_bytes=sent, detail=details.get(span.name))
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
                    (span.name, run_id),
                    "processing",
                    "memory",
                    worker=worker,
                    thread=RUNS,
                    status="OK",
                    type="",
                    nbytes=span.nbytes,
                    startstops=[{"action": span.action, "start": span.start, "stop": span.stop}],
                )
