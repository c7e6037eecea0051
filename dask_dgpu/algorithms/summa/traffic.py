"""The bytes that ranks send in a product: predicted, and exactly for each step."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from typing import NamedTuple

import numpy as np

from dask_dgpu.algorithms.summa.operand import Floats, Ints, aligned
from dask_dgpu.algorithms.summa.plan import SummaPlan
from graph_opt.model.layout import Cuts


class Found(NamedTuple):
    """The place (block row plus column), panel, owner, and bytes in messages of each piece."""

    place: Ints
    panel: Ints
    owner: Ints
    nbytes: Ints


Find = Callable[[int, int, int], Found]


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


def workspace(plan: SummaPlan, sent: Ints | None = None) -> int:
    """Return the most bytes of a rank beyond its share of A, B and C.

    ``sent`` is :func:`by_step`, if it is known.
    """
    steps = (by_step(plan) if sent is None else sent).reshape(plan.steps, -1, plan.size)
    panels = min(2, plan.steps) * plan.panel_bytes(plan.steps)
    messages = int(steps.max(axis=0).sum(axis=0).max())
    return messages + panels + max(plan.reduction_bytes, plan.copied_bytes)


def traffic(plan: SummaPlan) -> Ints:
    """Return the bytes that each rank sends and receives in each step, ``[step, way, rank]``."""
    found: Ints = by_step(plan).sum(axis=1)
    return found


def summed(plan: SummaPlan) -> Ints:
    """Return the bytes that each rank receives of other layers' partial sums, after all steps."""
    total = np.zeros(plan.size, np.int64)
    for rank, (r, c, d) in plan.positions.items():
        total[rank] = (plan.mesh[2] - 1) * plan.kept[r, c][d]
    return total


def by_step(plan: SummaPlan) -> Ints:
    """Return the bytes that each rank sends and receives, ``[step, level, way, rank]``.

    On several hosts, what ranks of a host pass on is a second level.
    """
    shape = plan.steps, 2 if plan.hosts else 1, 2, plan.size
    found = _moves(plan)
    at = [((found.step * shape[1] + found.level) * 2 + way) * plan.size for way in (0, 1)]
    ranks = np.concatenate([at[0] + found.source, at[1] + found.target])
    nbytes = np.concatenate([found.nbytes, found.nbytes])
    return np.bincount(ranks, nbytes, prod(shape)).reshape(shape).astype(np.int64)


def by_level(plan: SummaPlan) -> Ints:
    """Return the bytes that each rank sends to each in all steps, ``[level, sender, receiver]``."""
    shape = 2 if plan.hosts else 1, plan.size, plan.size
    found = _moves(plan)
    pair = (found.level * plan.size + found.source) * plan.size + found.target
    return np.bincount(pair, found.nbytes, prod(shape)).reshape(shape).astype(np.int64)


class _Moves(NamedTuple):
    """Bytes that one rank sends to another in a step, of each piece."""

    step: Ints
    level: Ints
    source: Ints
    target: Ints
    nbytes: Ints


def _moves(plan: SummaPlan) -> _Moves:
    """Return what all ranks send to each other."""
    if not plan.places:
        return _Moves(*np.zeros((5, 0), np.int64))
    groups, find = plan.sharing, pieces_of(plan)
    pieces = [find(operand, part, layer) for operand, part, layer, _ in groups]
    place, panel, owner, nbytes = map(np.concatenate, zip(*pieces, strict=True))
    group = np.repeat(np.arange(len(groups)), [len(each.place) for each in pieces])
    # panels wrap around
    first = np.array([plan.panel_number(ranks[0], 0) for *_, ranks in groups])
    step = (panel - first[group]) % plan.steps
    counts = np.array([len(ranks) for *_, ranks in groups])
    members = np.zeros((len(groups), counts.max()), np.int64)
    for row, (*_, ranks) in zip(members, groups, strict=True):
        row[: len(ranks)] = ranks
    sender, far = owner, np.zeros(len(owner), bool)
    if plan.hosts:
        far = plan.host_of[owner] != plan.host_of[members[group, 0]]
        sender = np.where(far, members[group, place % counts[group]], owner)
    ways = [
        (far, far & False, owner, sender),
        *((at < counts[group], far, sender, each[group]) for at, each in enumerate(members.T)),
    ]
    found = []
    for there, passed, source, target in ways:
        some = np.flatnonzero(there & (source != target))
        found.append((step[some], passed[some], source[some], target[some], nbytes[some]))
    return _Moves(*map(np.concatenate, zip(*found, strict=True)))


def pieces_of(plan: SummaPlan) -> Find:
    """Return what finds the pieces of a part of the mesh in a layer."""
    edges = [[np.array(cuts) for cuts in matrix.cuts] for matrix in plan.operands]

    @cache
    def find(operand: int, part: int, layer: int) -> Found:
        matrix, (lo, hi) = plan.operands[operand], plan.spans[operand][part]
        along, across = edges[operand][operand], edges[operand][1 - operand]
        mine, _, lengths = _cut(along, np.array([along[lo], along[hi]]))
        panels = plan.panels(layer)
        inner, panel, widths = _cut(across, np.array([panels[0][0], *(hi for _, hi in panels)]))
        rows, heights, columns, wide = mine[:, None], lengths[:, None], inner, widths
        if operand == 1:
            rows, heights, columns, wide = inner[:, None], widths[:, None], mine, lengths
        nbytes = aligned(matrix.piece_bytes(heights, wide))
        numbers = np.broadcast_to(panel if operand == 0 else panel[:, None], nbytes.shape)
        found = rows + columns, numbers, matrix.ranks[rows, columns], nbytes
        return Found(*(each.ravel() for each in found))

    return find


def _cut(cuts: Ints, spans: Ints) -> tuple[Ints, Ints, Ints]:
    """Cut consecutive spans by chunks; return the chunk, the span and the length of each part."""
    inside = cuts[(cuts > spans[0]) & (cuts < spans[-1])]
    edges = np.unique(np.concatenate([spans, inside]))
    starts = edges[:-1]
    chunk, span = (each.searchsorted(starts, "right") - 1 for each in (cuts, spans))
    return chunk, span, np.diff(edges)
