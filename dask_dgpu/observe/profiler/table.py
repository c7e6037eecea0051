"""The table of a profiler, and its record as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan
from typing import Any

from dask_dgpu.cost.table import Rows, Shown, quantity
from dask_dgpu.runtime.recording import Profile, Row
from graph_opt.model.layout import counted

WIDTH = 120
"""Columns of text, without those of columns that are only there if needed."""

LONGEST = 22
"""Most letters of an operation."""


@dataclass(frozen=True, repr=False)
class ProfileTable(Shown):
    """The totals of a profiled block by operation. Prints and displays as a table.

    Parameters
    ----------
    profile : Profile
        The record.

    Notes
    -----
    Rows of gangs have the seconds of the slowest rank: ``compute`` and ``wait``, which is
    transfer that nothing hides, add up to ``seconds``. Rows of Dask's tasks have the sum over all
    threads. Rates are those of a rank, in percent of the rate that was measured on this cluster.
    """

    profile: Profile

    def _rows(self) -> Rows:
        rows = sorted(self.profile.rows, key=lambda row: -row.seconds)
        dense = any(row.dense_bytes > row.sent_bytes for row in rows)
        headings = ["operation", "by", "calls", "seconds", "compute", "transfer", "wait", "sent"]
        headings += [*(["dense"] if dense else []), "GB/s", "TFLOP/s"]
        cells = [_cells(row, dense) for row in rows]
        return Rows(self._title(), headings, cells, WIDTH + 10 * dense)

    def _title(self) -> str:
        profile = self.profile
        sent = sum(row.sent_bytes for row in profile.rows if not isnan(row.sent_bytes))
        title = (
            f"{quantity(profile.stop - profile.start, 's')}: {counted(profile.gangs, 'gang')}, "
            f"{counted(profile.tasks, 'task')} of Dask, {quantity(sent, 'B')} sent"
        )
        if profile.running:
            title += f"; {profile.running} still running, which do not count"
        return title


def _cells(row: Row, dense: bool) -> list[str]:
    facts = _facts(row)
    word = row.operation if len(row.operation) <= LONGEST else row.operation[:LONGEST] + "…"
    cells = [word, row.kind, str(row.calls)]
    cells += [_number(facts[name]) for name in ("seconds", "compute", "transfer", "wait")]
    cells.append(quantity(facts["sent_bytes"], "B"))
    cells += [quantity(facts["dense_bytes"], "B")] if dense else []
    for rate, unit in (("bytes_per_second", 1e9), ("flops", 1e12)):
        share = facts[f"{rate}_share"]
        text = "" if facts[rate] is None else f"{facts[rate] / unit:.2g}"
        cells.append(text if share is None or share < 0.005 else f"{text} ({share:.0%})")
    return cells


def _facts(row: Row) -> dict[str, Any]:
    """Return a row as plain values, ``None`` for what is not known or makes no sense."""
    return {
        "operation": row.operation,
        "by": row.kind,
        "calls": row.calls,
        "seconds": row.seconds,
        "compute": _known(row.compute),
        "transfer": _known(row.transfer),
        "wait": _known(row.wait),
        "sent_bytes": _known(row.sent_bytes),
        "dense_bytes": _known(row.dense_bytes),
        "bytes_per_second": _rate(row.rank_bytes, row.transfer),
        "bytes_per_second_share": _rate(row.network_seconds, row.transfer),
        "flops": _rate(row.rank_flops, row.compute),
        "flops_share": _rate(row.product_seconds, row.compute),
    }


def plain(profile: Profile) -> dict[str, Any]:
    """Return a record as plain values."""
    events = []
    for event in profile.events:
        facts = event._asdict() | {"lane": profile.lanes[event.lane], "wait": _known(event.wait)}
        facts |= {"start": event.start - profile.start, "stop": event.stop - profile.start}
        events.append(facts)
    return {
        "seconds": profile.stop - profile.start,
        "gangs": profile.gangs,
        "tasks": profile.tasks,
        "running": profile.running,
        "rows": [_facts(row) for row in profile.rows],
        "events": events,
        "dropped": profile.dropped,
    }


def _known(value: float) -> float | None:
    return None if isnan(value) else value


def _rate(amount: float, seconds: float) -> float | None:
    """Return amount a second, ``None`` without an amount, or if anything is not known."""
    return None if isnan(amount + seconds) or amount <= 0 or seconds <= 0 else amount / seconds


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
