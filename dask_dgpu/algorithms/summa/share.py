"""What a rank of SUMMA computes: rows and columns of its panels, and its strips of C."""

from __future__ import annotations

from typing import NamedTuple

from dask_dgpu.algorithms.summa.plan import SummaPlan
from graph_opt.model.layout import Span


class Share(NamedTuple):
    """What a rank computes: rows and columns of its panels, and its strips of C.

    Strips have a block row, a span of block columns, the number of their group, the first row in
    the rank's rectangle, and a shape. ``starts`` are the first columns of groups.
    """

    height: int
    width: int
    starts: list[int]
    strips: list[tuple[int, Span, int, int, tuple[int, int]]]


def share_of(plan: SummaPlan, rank: int) -> Share:
    """Return what a rank computes, found once for a plan.

    Strips have one block row and as many block columns as the workspace allows.
    """
    key = "share", rank
    if key not in plan.schedules:
        (top, bottom), (left, right) = plan.rectangle(rank)
        groups, strips = plan.groups(rank), []
        rows, columns = plan.a.rows, plan.b.columns
        r = plan.positions[rank][0] if rank in plan.positions else None
        for i in range(*plan.row_spans[r]) if r is not None else ():
            for group, (j0, j1) in enumerate(groups):
                shape = rows[i + 1] - rows[i], columns[j1] - columns[j0]
                strips.append((i, (j0, j1), group, rows[i] - top, shape))
        plan.schedules[key] = Share(
            0 if plan.in_place[0] else bottom - top,
            0 if plan.in_place[1] else right - left,
            [columns[j] - left for j, _ in groups],
            strips,
        )
    found: Share = plan.schedules[key]
    return found
