"""The bytes that ranks send in a product: predicted, and exactly for each step."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from dask_dgpu.algorithms.summa.operand import Floats, Ints, aligned
from dask_dgpu.algorithms.summa.plan import SummaPlan
from graph_opt.model.layout import Cuts

Find = Callable[[int, int, int, int], "Found"]
Found = tuple[Ints, Ints, Ints]
"""The place (block row plus column), the owner, and the bytes in messages of each piece."""


class Needs:
    """Bytes that each rank needs from others, as curves along the contraction.

    ``curve(k)`` is the bytes up to position k. So the bytes of any panel are the difference of two
    points, for any number of steps.
    """

    def __init__(self, plan: SummaPlan) -> None:
        self._curves: list[tuple[int, Cuts, Floats]] = []
        for rank, place in plan.positions.items():
            for axis, operand in enumerate(plan.operands):
                mine, inner = slice(*plan.spans[axis][place[axis]]), operand.cuts[1 - axis]
                remote = operand.ranks != rank
                lengths = np.diff(operand.cuts[axis])[mine]
                each = lengths @ (remote if axis == 0 else remote.T)[mine]
                width = operand.encoding.element_bytes(operand.itemsize)
                total = np.cumsum(each * np.diff(inner)) * width
                self._curves.append((rank, inner, np.concatenate([[0], total])))

    def received(self, plan: SummaPlan, step: int) -> list[int]:
        """Return the bytes that each rank needs from others in a step, of elements alone."""
        received = [0] * plan.size
        for rank, inner, curve in self._curves:
            start, stop = np.interp(plan.panel(rank, step), inner, curve)
            received[rank] += round(stop - start)
        return received


def workspace(plan: SummaPlan) -> int:
    """Return the most bytes of a rank beyond its share of A, B and C."""
    find = pieces_of(plan)
    steps = [
        [counts.sum(axis=axis) for counts in by_level(plan, step, find) for axis in (1, 0)]
        for step in range(plan.steps)
    ]
    panels = min(2, plan.steps) * plan.panel_bytes(plan.steps)
    messages = int(np.max(steps, axis=0).sum(axis=0).max())
    return messages + panels + max(plan.reduction_bytes, plan.copied_bytes)


def traffic(plan: SummaPlan, step: int, find: Find | None = None) -> Ints:
    """Return the bytes that each rank sends, and those that each receives, in a step.

    ``find`` is :func:`pieces_of`, for several steps of a plan.
    """
    counts = np.sum(by_level(plan, step, find or pieces_of(plan)), axis=0)
    return np.stack([counts.sum(axis=1), counts.sum(axis=0)])


def summed(plan: SummaPlan) -> Ints:
    """Return the bytes that each rank receives of other layers' partial sums, after all steps."""
    received = np.zeros(plan.size, np.int64)
    for rank, (r, c, d) in plan.positions.items():
        received[rank] = (plan.mesh[2] - 1) * plan.kept[r, c][d]
    return received


def by_level(plan: SummaPlan, step: int, find: Find) -> list[Ints]:
    """Return the bytes that each rank sends to each in a step: ``[sender, receiver]``.

    On several hosts, what ranks of a host pass on is a second table.
    """
    if not plan.places:
        return [np.zeros((plan.size, plan.size), np.int64)]
    groups = plan.sharing
    pieces = [
        find(operand, part, layer, plan.panel_number(ranks[0], step))
        for operand, part, layer, ranks in groups
    ]
    place, owner, nbytes = map(np.concatenate, zip(*pieces, strict=True))
    counts = np.array([len(ranks) for *_, ranks in groups])
    members = np.zeros((len(groups), counts.max()), np.int64)
    for row, (*_, ranks) in zip(members, groups, strict=True):
        row[: len(ranks)] = ranks
    group = np.repeat(np.arange(len(groups)), [len(each[0]) for each in pieces])
    sender, far = owner, np.zeros(len(owner), bool)
    if plan.hosts:
        far = plan.host_of[owner] != plan.host_of[members[group, 0]]
        sender = np.where(far, members[group, place % counts[group]], owner)
    tables = np.zeros((2, plan.size, plan.size))
    ways = [(0, far, owner, sender)]
    for at in range(members.shape[1]):
        there, receiver = at < counts[group], members[group, at]
        ways += [(0, there & ~far, owner, receiver), (1, there & far, sender, receiver)]
    for level, some, source, target in ways:
        pair = source[some] * plan.size + target[some]
        tables[level] += np.bincount(pair, nbytes[some], plan.size**2).reshape(tables[level].shape)
    tables[:, np.arange(plan.size), np.arange(plan.size)] = 0
    return list(tables.astype(np.int64)[: 2 if plan.hosts else 1])


def pieces_of(plan: SummaPlan) -> Find:
    """Return what finds the pieces of a part of the mesh, in a layer, in a panel of it."""
    panels = [plan.panels(layer) for layer in range(plan.mesh[2])]

    @cache
    def find(operand: int, part: int, layer: int, panel: int) -> Found:
        matrix, (lo, hi) = plan.operands[operand], plan.spans[operand][part]
        cuts = matrix.cuts[operand]
        spans = (cuts[lo], cuts[hi]), panels[layer][panel]
        if operand == 1:
            spans = spans[::-1]
        (rows, heights), (columns, widths) = (
            _overlapping(edges, *span) for edges, span in zip(arrays[operand], spans, strict=True)
        )
        nbytes = aligned(matrix.piece_bytes(heights[:, None], widths[None, :]))
        place = rows[:, None] + columns[None, :]
        return place.ravel(), matrix.ranks[rows][:, columns].ravel(), nbytes.ravel()

    arrays = [[np.array(cuts) for cuts in matrix.cuts] for matrix in plan.operands]
    return find


def _overlapping(cuts: Ints, start: int, stop: int) -> tuple[Ints, Ints]:
    """Return the chunks that overlap a span, and their common lengths; as :func:`overlaps`."""
    first = int(cuts.searchsorted(start, "right")) - 1
    last = int(cuts.searchsorted(stop, "left"))
    edges = cuts[max(0, first) : last + 1].clip(start, stop)
    lengths = edges[1:] - edges[:-1]
    full = lengths > 0
    return np.flatnonzero(full) + max(0, first), lengths[full]
