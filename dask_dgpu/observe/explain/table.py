"""The table of an explanation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from dask_dgpu.cost.table import BLUE, GREEN, ORANGE, Cell, Rows, quantity
from dask_dgpu.observe.explain.operations import GANG, Operation, known_sum
from dask_dgpu.planner.predict import Prediction

TEXTS = ("operation", "by", "why")
PREDICTED = {
    "tasks": "tasks on the scheduler",
    "moved": "bytes that the busiest rank receives",
    "memory": "peak memory of a rank",
    "predicted": "predicted seconds",
}
MEASURED = {
    "measured": "seconds of the slowest rank in the last run",
    "exposed": "seconds of transfers behind which nothing ran",
    "sent": "bytes that all ranks sent",
}
"""The columns, with the tips of those that are numbers."""

WIDTH = 98

MOST_ALIKE = 2
"""Most iterations of a loop to show one by one."""

LONGEST_BODY = 8
"""Most operations in the body of a loop that is recognised."""

SUMS = (
    *("times", "tasks", "moved_bytes", "seconds"),
    *("measured", "hidden", "exposed", "sent_bytes"),
)
"""The fields of operations that add up in a loop."""


@dataclass(frozen=True)
class Totals:
    """A graph as it will run, and in plain Dask: tasks on the scheduler, predicted seconds."""

    tasks: int
    seconds: float
    dask_tasks: int
    dask_seconds: float


def table_of(
    operations: Sequence[Operation],
    gangs: Sequence[Prediction],
    totals: Totals | None,
    room: float | None,
    measured: bool,
) -> Rows:
    """Return the table of operations, with the costs of their gangs, and a row of totals.

    ``room`` are the free bytes of a rank. If ``measured``, there are columns for it; nothing is
    predicted of what is computed already.
    """
    lines = [*_lines(operations, gangs)]
    if totals is not None:
        lines.append(
            ("", _total(totals, gangs, known_sum(operation.measured for operation in operations)))
        )
    longest = max((s for _, each in lines for s in (each.seconds, each.measured) if s), default=1.0)
    headings = [*TEXTS, *(PREDICTED if _is_predicted(totals) else ())]
    headings += MEASURED if measured else ()
    cells = [_cells(indent, each, longest, room) for indent, each in lines]
    rows = [[row[heading] for heading in headings] for row in cells]
    return Rows(
        "",
        headings,
        rows,
        width=WIDTH + 30 * measured,
        texts=len(TEXTS),
        total=totals is not None,
        dense=True,
        tips=PREDICTED | MEASURED,
        name="dgpu-explain",
    )


def _is_predicted(totals: Totals | None) -> bool:
    return totals is None or totals.dask_tasks > 0


def _lines(
    operations: Sequence[Operation], gangs: Sequence[Prediction]
) -> Iterator[tuple[str, Operation]]:
    """Yield the rows with their indents; those of several operations follow one of their gang."""
    members, before = Counter(operation.gang for operation in operations), None
    for each in _folded(operations):
        number = each.gang
        if number is None or number >= len(gangs):  # one that is only known by its last run
            yield "", each
        elif members[number] == 1:
            yield "", replace(each, **_costs(gangs[number]))
        else:
            if number != before:
                why = f"one program; {_plain(gangs[number])}"
                word = f"gang of {members[number]} operations"
                measured = known_sum(x.measured for x in operations if x.gang == number)
                costs = _costs(gangs[number])
                yield "", Operation("", word, GANG, why, measured=measured, **costs)
            yield "  ", each
        before = number


def _folded(operations: Sequence[Operation]) -> Iterator[Operation]:
    """Yield operations; those of a loop of more than ``MOST_ALIKE`` iterations become one body."""
    keys = [
        (operation.operation, operation.by, operation.why, operation.gang)
        for operation in operations
    ]
    at = 0
    while at < len(keys):
        length, times = _loop(keys, at)
        for place in range(at, at + length):
            yield reduce(_joined, operations[place : at + times * length : length])
        at += times * length


def _loop(keys: Sequence[object], at: int) -> tuple[int, int]:
    """Return the length of a loop's body that begins here, and the number of its iterations."""
    for length in range(1, LONGEST_BODY + 1):
        body, times = keys[at : at + length], 1
        while body == keys[at + times * length : at + (times + 1) * length]:
            times += 1
        if times > MOST_ALIKE:
            return length, times
    return 1, 1


def _joined(one: Operation, other: Operation) -> Operation:
    """Return both as one: sums, and the larger memory."""
    memory = [each.peak_bytes for each in (one, other) if each.peak_bytes is not None]
    sums = {name: known_sum(getattr(each, name) for each in (one, other)) for name in SUMS}
    return replace(one, peak_bytes=max(memory, default=None), **sums)


def _total(totals: Totals, gangs: Sequence[Prediction], measured: float | None) -> Operation:
    if not _is_predicted(totals):
        return Operation("", "total", "", "computed already", measured=measured)
    return Operation(
        "",
        "total",
        "",
        _plain(totals),
        tasks=totals.tasks,
        moved_bytes=sum(gang.moved_bytes for gang in gangs) or None,
        peak_bytes=max((gang.peak_bytes for gang in gangs), default=None),
        seconds=totals.seconds,
        measured=measured,
    )


def _costs(gang: Prediction) -> dict[str, Any]:
    names = "tasks", "moved_bytes", "peak_bytes", "seconds"
    return {name: getattr(gang, name) for name in names}


def _cells(
    indent: str, each: Operation, longest: float, room: float | None
) -> dict[str, str | Cell]:
    """Return the cells of a row by their columns, with bars for seconds and memory."""
    times = f"{each.times} x " if each.times > 1 else ""

    def drawn(value: float | None, unit: str, colour: str, most: float, tip: str) -> Cell:
        if value is None or not most:
            return Cell(quantity(value, unit))
        return Cell(quantity(value, unit), {colour: value / most}, tip)

    return {
        "operation": Cell(indent + times + each.operation, tip=each.summary),
        "by": each.by,
        "why": each.why,
        "tasks": "" if each.tasks is None else str(each.tasks),
        "moved": quantity(each.moved_bytes, "B"),
        "memory": drawn(
            each.peak_bytes, "B", GREEN, room or 0, f"of {quantity(room, 'B')} free for a gang"
        ),
        "predicted": drawn(each.seconds, "s", BLUE, longest, "predicted"),
        "measured": drawn(each.measured, "s", ORANGE, longest, "measured"),
        "exposed": quantity(each.exposed, "s"),
        "sent": quantity(each.sent_bytes, "B"),
    }


def _plain(costs: Totals | Prediction) -> str:
    return f"plain Dask: {costs.dask_tasks} tasks, {quantity(costs.dask_seconds, 's')}"
