"""What the scheduler keeps of the steps of gangs is bounded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dask_dgpu.runtime.execute import Span
from dask_dgpu.runtime.program import Launch, Program
from dask_dgpu.runtime.scheduler.records import KEPT_RUNS, Records
from graph_opt.model.cost import HOST
from graph_opt.model.piece import Wanted


class Scheduler:
    """Keeps events, as Dask's does."""

    def __init__(self) -> None:
        self.plugins: dict[str, Any] = {}
        self.events: list[Any] = []

    def log_event(self, topic: str, event: Any) -> None:
        self.events.append((topic, event))


def wanted(name: str) -> Wanted:
    return ((f"array-of-{name}", ((0,), (1,))),)


def run(name: str, *ranks: list[Span], run_id: int = 0) -> Any:
    """Return a run with the spans of each rank."""
    outputs = ((0, blocks) for _, blocks in wanted(name))
    program = Program((), (), (*outputs,), HOST)
    launch = Launch(program, (f"array-of-{name}",), (name,))
    spans = {f"tcp://{rank}": each for rank, each in enumerate(ranks)}
    facts = {"launch": launch, "program": program, "spans": spans, "details": {}}
    return SimpleNamespace(key=(name, 0), run_id=run_id, **facts)


def test_slowest_rank_and_all_bytes_count():
    scheduler = Scheduler()
    records = Records(scheduler)
    first = [Span("mul", "compute", 1, 3, 5), Span("add", "compute", 3, 4, 7)]
    second = [Span("mul", "compute", 1, 2, 5), Span("add", "compute", 2, 5, 7)]
    records.add(run("gang-a", first, second))
    slowest = Span("mul", "compute", 1, 3, 10), Span("add", "compute", 2, 5, 14)
    assert records.last(wanted("gang-a")) == slowest
    ((topic, event),) = scheduler.events
    assert topic == "dgpu"
    assert event == {
        "gang": "gang-a", "run_id": 0, "ranks": 2, "steps": 2, "seconds": 5, "nbytes": 24
    }  # fmt: skip


def test_transfers_are_those_of_the_slowest_rank():
    records = Records(Scheduler())
    first = [Span("mul", "compute", 1, 3, 5, 1.0, 0.5, sent_bytes=7)]
    second = [Span("mul", "compute", 1, 4, 5, 0.2, 0.1, sent_bytes=11)]
    records.add(run("gang-a", first, second))
    slowest = Span("mul", "compute", 1, 4, 10, 0.2, 0.1, sent_bytes=18)
    assert records.last(wanted("gang-a")) == (slowest,)


def test_a_later_run_replaces_an_earlier_one():
    records = Records(Scheduler())
    records.add(run("gang-a", [Span("mul", "compute", 0, 9)]))
    records.add(run("gang-a", [Span("mul", "compute", 0, 1)], run_id=1))
    assert records.last(wanted("gang-a")) == (Span("mul", "compute", 0, 1),)


def test_only_the_last_runs_are_kept():
    records = Records(Scheduler())
    for number in range(KEPT_RUNS + 3):
        records.add(run(f"gang-{number:03}", [Span("mul", "compute", 0, 1)], run_id=number))
    assert len(records._records) == KEPT_RUNS
    assert records.last(wanted("gang-002")) == ()
    assert records.last(wanted("gang-003")) != ()
