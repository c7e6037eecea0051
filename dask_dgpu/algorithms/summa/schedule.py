"""The transfers of each step: which piece of which block goes to which rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from dask_dgpu.algorithms.summa.plan import Operand, SummaPlan
from graph_opt.model.layout import Cuts, Span, overlaps

ALIGN = 16
"""Pieces in a message start at multiples of this, in bytes; views of any dtype are aligned."""

Slices = tuple[slice, slice]
Ints = np.ndarray[Any, np.dtype[np.int64]]


class Piece(NamedTuple):
    """A rectangle of one block, for a panel.

    ``operand`` is 0 for A and 1 for B; ``source`` is a place in the block, ``target`` one in the
    panel.
    """

    operand: int
    block: tuple[int, int]
    owner: int
    source: Slices
    target: Slices
    nbytes: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, columns = self.source
        return rows.stop - rows.start, columns.stop - columns.start

    @property
    def aligned(self) -> int:
        """Bytes in a message, padding included."""
        return _aligned(self.nbytes)


@dataclass
class Step:
    """The work of one rank in one step, pieces in the order of their messages."""

    panel: Span
    sends: dict[int, list[Piece]] = field(default_factory=lambda: defaultdict(list))
    receives: dict[int, list[Piece]] = field(default_factory=lambda: defaultdict(list))
    local: list[Piece] = field(default_factory=list)
    moves: bool = False
    """Whether any rank sends in this step; if not, no rank calls the exchange."""

    def send_counts(self, size: int) -> list[int]:
        """Bytes to each rank."""
        return [sum(piece.aligned for piece in self.sends.get(q, ())) for q in range(size)]

    def receive_counts(self, size: int) -> list[int]:
        """Bytes from each rank."""
        return [sum(piece.aligned for piece in self.receives.get(q, ())) for q in range(size)]


def schedule(plan: SummaPlan, rank: int) -> list[Step]:
    """Return the steps of one rank."""
    steps = []
    for at in range(plan.steps):
        step = Step(plan.panel(rank, at))
        for destination in plan.places:
            for piece in pieces(plan, destination, at):
                if piece.owner == destination:
                    if destination == rank:
                        step.local.append(piece)
                    continue
                step.moves = True
                if piece.owner == rank:
                    step.sends[destination].append(piece)
                elif destination == rank:
                    step.receives[piece.owner].append(piece)
        steps.append(step)
    return steps


def pieces(plan: SummaPlan, rank: int, step: int) -> Iterator[Piece]:
    """Yield the pieces of a rank's panels in a step, A's before B's."""
    rows, columns = plan.rectangle(rank)
    panel = plan.panel(rank, step)
    yield from _cut(0, plan.a, rows, panel)
    yield from _cut(1, plan.b, panel, columns)


def _cut(operand: int, matrix: Operand, rows: Span, columns: Span) -> Iterator[Piece]:
    across = list(overlaps(matrix.columns, *columns))
    for i, top, bottom in overlaps(matrix.rows, *rows):
        for j, left, right in across:
            yield Piece(
                operand,
                (i, j),
                matrix.owner(i, j),
                (
                    slice(top - matrix.rows[i], bottom - matrix.rows[i]),
                    slice(left - matrix.columns[j], right - matrix.columns[j]),
                ),
                (
                    slice(top - rows[0], bottom - rows[0]),
                    slice(left - columns[0], right - columns[0]),
                ),
                (bottom - top) * (right - left) * matrix.itemsize,
            )


def workspace(plan: SummaPlan) -> int:
    """Return the most bytes of a rank beyond its share of A, B and C."""
    sent, received = [0] * plan.size, [0] * plan.size
    for step in range(plan.steps):
        for most, now in zip((sent, received), traffic(plan, step), strict=True):
            most[:] = map(max, most, now)
    messages = max(out + inbox for out, inbox in zip(sent, received, strict=True))
    kept = messages + min(2, plan.steps) * plan.panel_bytes(plan.steps)
    return kept + max(plan.partial_bytes, plan.reduction_bytes, plan.copied_bytes)


def traffic(plan: SummaPlan, step: int) -> tuple[list[int], list[int]]:
    """Return the bytes that each rank sends and receives in a step."""
    sent, received = np.zeros((2, plan.size), np.int64)
    for destination in plan.places:
        rows, columns = plan.rectangle(destination)
        panel = plan.panel(destination, step)
        needed = _by_owner(plan.a, rows, panel, plan.size)
        needed += _by_owner(plan.b, panel, columns, plan.size)
        needed[destination] = 0
        sent += needed
        received[destination] += needed.sum()
    return sent.tolist(), received.tolist()


def _by_owner(matrix: Operand, rows: Span, columns: Span, size: int) -> Ints:
    """Return the bytes in messages of a part of a matrix, for each owner."""
    heights, widths = _within(matrix.rows, *rows), _within(matrix.columns, *columns)
    there = np.ix_(heights > 0, widths > 0)
    nbytes = np.outer(heights, widths)[there] * matrix.itemsize
    counts = np.bincount(matrix.ranks[there].ravel(), _aligned(nbytes).ravel(), size)
    return counts.astype(np.int64)


def _aligned(nbytes: Any) -> Any:
    """Round bytes up to a multiple of ``ALIGN``."""
    return -(-nbytes // ALIGN) * ALIGN


def _within(cuts: Cuts, start: int, stop: int) -> Ints:
    """Return the length of each chunk within ``[start, stop)``."""
    return np.diff(np.clip(cuts, start, stop))


class Needs:
    """Bytes that each rank needs from others, as curves along the contraction.

    ``curve(k)`` is the bytes up to position k. So the bytes of any panel are the difference of two
    points, for any number of steps.
    """

    def __init__(self, plan: SummaPlan) -> None:
        self._curves = {rank: self._curve(plan, rank) for rank in plan.places}

    @staticmethod
    def _curve(plan: SummaPlan, rank: int) -> list[tuple[Cuts, Any]]:
        place = plan.position(rank)
        assert place is not None  # `rank` is one of `places`
        spans = plan.row_spans[place[0]], plan.column_spans[place[1]]
        curves = []
        for axis, operand in enumerate((plan.a, plan.b)):
            kept, inner = operand.cuts[axis], operand.cuts[1 - axis]
            remote = operand.ranks != rank
            mine = slice(*spans[axis])
            each = np.diff(kept)[mine] @ (remote if axis == 0 else remote.T)[mine]
            total = np.cumsum(each * np.diff(inner)) * operand.itemsize
            curves.append((inner, np.concatenate([[0], total])))
        return curves

    def received(self, plan: SummaPlan, step: int) -> list[int]:
        """Return the bytes that each rank needs from others in a step, without padding."""
        received = [0] * plan.size
        for rank, curves in self._curves.items():
            for inner, curve in curves:
                start, stop = np.interp(plan.panel(rank, step), inner, curve)
                received[rank] += round(stop - start)
        return received


def bounded(plan: SummaPlan) -> SummaPlan:
    """Narrow the panels until the workspace is within the plan's limit.

    A rank that owns much more than its share sends more than a panel in a step.
    """
    while plan.steps < plan.deepest and workspace(plan) > plan.workspace_limit:
        plan = replace(plan, steps=min(2 * plan.steps, plan.deepest))
    return plan
