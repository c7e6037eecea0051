"""The table of an explanation, as text and as HTML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape

from dask_dgpu.cost.table import Rows, quantity
from dask_dgpu.observe.bars import BLUE, GREEN, ORANGE, html_bar
from dask_dgpu.observe.explain.folding import folded
from dask_dgpu.observe.explain.operations import GANG, Operation
from dask_dgpu.planner.predict import Prediction

HEADINGS = ("operation", "by", "why", "tasks", "moved", "memory", "predicted")
MEASURED = ("measured", "exposed", "sent")
TEXTS = 3
"""The first columns are text."""

WIDTH = 98
TITLES = {
    "tasks": "tasks on the scheduler",
    "moved": "bytes that the busiest rank receives",
    "memory": "peak memory of a rank",
    "predicted": "predicted seconds",
    "measured": "seconds of the slowest rank in the last run",
    "exposed": "seconds of transfers behind which nothing ran",
    "sent": "bytes that all ranks sent",
}


@dataclass(frozen=True)
class Totals:
    """A graph as it will run, and in plain Dask: tasks on the scheduler, predicted seconds."""

    tasks: int
    seconds: float
    dask_tasks: int
    dask_seconds: float


@dataclass(frozen=True)
class Table:
    """Operations, the predictions of their gangs, totals, and the free bytes of a rank.

    With ``measured``, there are columns for it. ``warnings`` come before the table, and ``notes``
    after it.
    """

    operations: Sequence[Operation]
    gangs: Sequence[Prediction]
    totals: Totals | None
    room: float | None
    measured: bool
    warnings: Sequence[str]
    notes: Sequence[str]

    def text(self) -> str:
        """Return the table as text."""
        if not self.operations:
            return "\n".join([*self.warnings, *self.notes])
        headings = [*HEADINGS, *(MEASURED if self.measured else ())]
        rows = [
            [("  " if inside else "") + cells[0], *cells[1:]]
            for inside, each in self._rows()
            for cells in [self._cells(each)]
        ]
        width = WIDTH + (30 if self.measured else 0)
        table = Rows("", headings, rows, width, TEXTS, self.totals is not None, dense=True)
        return "\n".join([*self.warnings, table.text().lstrip("\n"), *self.notes])

    def html(self) -> str:
        """Return the table as HTML, with bars for seconds and memory."""
        before, after = (
            "".join(f"<div>{escape(line)}</div>" for line in lines)
            for lines in (self.warnings, self.notes)
        )
        if not self.operations:
            return before + after
        headings = [*HEADINGS, *(MEASURED if self.measured else ())]
        head = "".join(
            f"<th title='{escape(TITLES.get(each, ''))}'>{each}</th>" for each in headings
        )
        rows = list(self._rows())
        longest = max(
            (s for _, each in rows for s in (each.seconds, each.measured) if s), default=1.0
        )
        body = "".join(self._row(inside, each, longest) for inside, each in rows)
        table = f"<table class='dgpu-explain'><thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
        return f"{before}{table}</table>{after}"

    def _row(self, inside: bool, each: Operation, longest: float) -> str:
        bars = {}
        if each.seconds is not None:
            bars[6] = html_bar({BLUE: each.seconds / longest}, "predicted")
        if each.measured is not None:
            bars[7] = html_bar({ORANGE: each.measured / longest}, "measured")
        if each.peak_bytes is not None and self.room:
            free = f"of {quantity(self.room, 'B')} free for a gang"
            bars[5] = html_bar({GREEN: each.peak_bytes / self.room}, free)
        cells = []
        for at, cell in enumerate(self._cells(each)):
            style = "left" if at < TEXTS else "right"
            if at == 0 and inside:
                style += ";padding-left:2em"
            tip = f" title='{escape(each.summary, quote=True)}'" if at == 0 else ""
            cells.append(
                f"<td{tip} style='text-align:{style}'>{escape(cell)}{bars.get(at, '')}</td>"
            )
        return f"<tr class='dgpu-{escape(each.by or 'total')}'>{''.join(cells)}</tr>"

    def _rows(self) -> Iterator[tuple[bool, Operation]]:
        """Yield rows; those after the row of a gang with several operations are inside it."""
        members: dict[int | None, int] = {}
        for each in self.operations:
            members[each.gang] = members.get(each.gang, 0) + 1
        before: int | None = None
        for each in folded(self.operations):
            whole = None if each.gang is None else self._gang(each.gang, members[each.gang])
            if whole is None or each.gang is None:
                yield False, each
            elif members[each.gang] == 1:
                yield False, _merged(each, whole)
            else:
                if each.gang != before:
                    yield False, whole
                yield True, each
            before = each.gang
        if self.totals is not None:
            yield False, self._total(self.totals)

    def _gang(self, number: int, members: int) -> Operation | None:
        """Return the row of a gang; there is none for one that is only known by its last run."""
        if number >= len(self.gangs):
            return None
        found = self.gangs[number]
        return Operation(
            "",
            f"gang of {members} operations",
            GANG,
            f"one program; {_plain(found.dask_tasks, found.dask_seconds)}",
            tasks=found.tasks,
            moved_bytes=found.moved_bytes,
            peak_bytes=found.peak_bytes,
            seconds=found.seconds,
            measured=self._measured(number),
        )

    def _measured(self, gang: int | None = None) -> float | None:
        found = [
            each.measured
            for each in self.operations
            if each.measured is not None and gang in (None, each.gang)
        ]
        return sum(found) if found else None

    def _total(self, totals: Totals) -> Operation:
        if not totals.dask_tasks:  # all of it is in memory
            return Operation("", "total", "", "computed already", measured=self._measured())
        plain = _plain(totals.dask_tasks, totals.dask_seconds)
        return Operation(
            "",
            "total",
            "",
            plain,
            tasks=totals.tasks,
            moved_bytes=sum(each.moved_bytes for each in self.gangs) or None,
            peak_bytes=max((each.peak_bytes for each in self.gangs), default=None),
            seconds=totals.seconds,
            measured=self._measured(),
        )

    def _cells(self, each: Operation) -> list[str]:
        times = f"{each.times} x " if each.times > 1 else ""
        cells = [times + each.operation, each.by, each.why]
        cells.append("" if each.tasks is None else str(each.tasks))
        cells += [_bytes(each.moved_bytes), _bytes(each.peak_bytes), _seconds(each.seconds)]
        if self.measured:
            cells += [_seconds(each.measured), _seconds(each.exposed), _bytes(each.sent_bytes)]
        return cells


def _merged(one: Operation, whole: Operation) -> Operation:
    """Return the only operation of a gang with the costs of the gang."""
    return replace(
        one,
        tasks=whole.tasks,
        moved_bytes=whole.moved_bytes,
        peak_bytes=whole.peak_bytes,
        seconds=whole.seconds,
    )


def _plain(tasks: int, seconds: float) -> str:
    return f"plain Dask: {tasks} tasks, {quantity(seconds, 's')}"


def _bytes(value: int | None) -> str:
    return "" if value is None else quantity(value, "B")


def _seconds(value: float | None) -> str:
    return "" if value is None else quantity(value, "s")
