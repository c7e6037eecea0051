"""The plan of a redistribution: the units that move, their rounds, and the cost.

Every unit has a *phase* between 0 and 1, and rounds are intervals of it. The units of rank p
for rank q, in their order, are spread over all phases, and those for its neighbour come a
little before those for the next rank::

    phase      0                                                      1
    rank 0     to 1, to 2, to 3,   to 1, to 2, to 3,   to 1, to 2, to 3
    rank 1     to 2, to 3, to 0,   to 2, to 3, to 0,   to 2, to 3, to 0
    rank 2     to 3, to 0, to 1,   to 3, to 0, to 1,   to 3, to 0, to 1

So in any interval every rank sends and receives its even share, for any number of units of a
pair of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import prod, sqrt
from typing import Any

import numpy as np

from dask_dgpu.algorithms.cells import (
    Axis,
    Cells,
    Ints,
    Mask,
    chunk_at,
    elements,
    row_major,
    table_of,
)
from graph_opt.model.cost import Machine, pipelined, transfer_seconds
from graph_opt.model.layout import Bare, Cuts, Layout, even_spans, grid_of

Floats = np.ndarray[Any, np.dtype[np.float64]]


class Moves:
    """The pieces of a redistribution, their units, and their rounds.

    A *unit* is a source block or a slice of one, a *piece* the cell of a unit and a target block
    that is not passed on. Every rank computes the same, so no counts are exchanged.

    ``cells`` are the pieces, each of a ``unit`` and in a ``round``. Units have an ``owner``, and
    ``places`` among all. ``busiest`` are the most bytes of a rank in a round.
    """

    def __init__(self, plan: RedistributePlan) -> None:
        source, target, units = plan.source, plan.target, grid_of(plan.unit_cuts)
        others = np.array(target.owners, np.int64)
        others[plan.overlap.target[plan.kept]] = -1
        chunks = [
            np.minimum(chunk_at(cuts, np.array(along[:-1])), len(cuts) - 2)
            for cuts, along in zip(source.cuts, plan.unit_cuts, strict=True)
        ]
        owners = np.array(source.owners, np.int64)[row_major(chunks, source.grid)]
        axes = list(map(Axis.common, plan.unit_cuts, target.cuts))
        self.cells = cells = Cells(axes, (units, owners), (target.grid, others))
        used = np.zeros(prod(units), bool)
        used[cells.source] = True  # np.unique would sort millions of pieces
        self.places = np.flatnonzero(used)
        self.owner = owners[self.places]
        self.unit = (np.cumsum(used) - 1)[cells.source]
        shape = len(self.places), plan.size
        sent = table_of(self.unit, cells.receiver, cells.length * plan.itemsize, shape)
        self.unit_round, self.rounds, self.busiest = _dealt(
            self.owner, sent, plan.limit, transformed=plan.transformed
        )
        self.round = self.unit_round[self.unit]


def _dealt(owner: Ints, sent: Ints, limit: int, *, transformed: bool) -> tuple[Ints, int, int]:
    """Return the round of each unit, the number of rounds, and the most bytes of a rank in one.

    ``sent[u, q]`` are the bytes of unit u for rank q; those of the whole unit count too if it is
    ``transformed``. ``limit`` holds for two rounds that overlap. A unit above it takes a round.
    """
    units = np.arange(len(owner))
    away = sent.copy()
    away[units, owner] = 0
    load = away.copy()
    load[units, owner] = (away + sent if transformed else away).sum(axis=1)
    phase = _phases(owner, away, sent.sum(axis=1))
    order = np.argsort(phase, kind="stable")
    total = np.zeros((len(owner) + 1, sent.shape[1]), np.int64)
    np.cumsum(load[order], axis=0, out=total[1:])
    edges = _edges(total, limit)
    which = np.empty(len(owner), np.int64)
    which[order] = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
    return which, len(edges) - 1, int(np.diff(total[edges], axis=0).max(initial=0))


def _phases(owner: Ints, away: Ints, weight: Ints) -> Floats:
    """Return the phase of each unit."""
    size = away.shape[1]
    main = np.where(away.any(axis=1), away.argmax(axis=1), owner)
    # units for many ranks equally need no turn
    alike = 2 * away.max(axis=1, initial=0) <= away.sum(axis=1)
    turn = np.where(alike, 0, (main - owner) % size) / size
    pair = owner * size + main
    order = np.argsort(pair, kind="stable")
    of_pair = np.bincount(pair, weight, size * size)
    first = np.concatenate([[0.0], np.cumsum(of_pair)[:-1]])
    before = np.empty(len(owner))
    before[order] = np.cumsum(weight[order]) - weight[order]
    phases: Floats = (before - first[pair] + turn * weight) / of_pair[pair]
    return phases


def _edges(total: Ints, limit: int) -> list[int]:
    """Cut units, in the order of their phases, into rounds.

    ``total[k]`` are the bytes of each rank in the first k units. A round is closed before the unit
    that would exceed the capacity of a rank: half of the limit, unless all fit in one round.
    """
    if total[-1].max() <= limit:
        return [0] if len(total) == 1 else [0, len(total) - 1]
    columns, capacity = [np.ascontiguousarray(column) for column in total.T], max(1, limit // 2)
    edges = [0]
    while edges[-1] < len(total) - 1:
        at = edges[-1]
        fits = (np.searchsorted(c, c[at] + capacity, side="right") - 1 for c in columns)
        edges.append(max(at + 1, int(min(fits))))
    return edges


LEAST = 64 << 20
"""Bytes that the buffers of a redistribution may always take."""

ROUND_SECONDS = 1e-3
"""Time of the host to describe, pack and send a round of any size."""

PIECE_SECONDS = 2e-5
"""Time of the host for the messages of a round, for each rank; it counts on several hosts."""

UNITS_A_ROUND = 4
"""Approximate number of units that fill a rank's buffers in a round."""


@dataclass(frozen=True)
class RedistributePlan(Bare):
    """The plan of one redistribution on ``size`` ranks, between layouts of the same shape.

    ``limit`` are the most bytes of a rank's message buffers. ``unit_cuts`` are the cuts of the
    source and more: each unit between them is read and sent in one round. If the caller's ``read``
    computes units, they are ``transformed``, and their memory counts within ``limit``.
    """

    source: Layout
    target: Layout
    dtype: str
    size: int
    limit: int
    unit_cuts: tuple[Cuts, ...]
    transformed: bool = False

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return np.dtype(self.dtype).itemsize

    @property
    def rounds(self) -> int:
        """Number of rounds; 0 if everything is in place."""
        return self.moves.rounds

    @cached_property
    def moves(self) -> Moves:
        """All pieces of all ranks in all rounds."""
        return Moves(self)

    @cached_property
    def overlap(self) -> Cells:
        """The parts of target blocks in source blocks."""
        source, target = self.source, self.target
        axes = list(map(Axis.common, source.cuts, target.cuts))
        return Cells(axes, (source.grid, source.owners), (target.grid, target.owners))

    @cached_property
    def kept(self) -> Mask:
        """Which of these are the same block on the same rank, which is passed on."""
        cells = self.overlap
        whole = elements(self.source)[cells.source] == cells.length
        whole &= elements(self.target)[cells.target] == cells.length
        return whole & (cells.sender == cells.receiver)

    @cached_property
    def copied(self) -> Ints:
        """Bytes of rank p's blocks for rank q, without kept blocks: ``copied[p, q]``."""
        cells, some, shape = self.overlap, ~self.kept, (self.size, self.size)
        sent = table_of(cells.sender[some], cells.receiver[some], cells.length[some], shape)
        return sent * self.itemsize


def plan_redistribute(
    source: Layout,
    target: Layout,
    dtype: str,
    size: int,
    *,
    limit: int = 64 << 20,
    whole_axes: tuple[int, ...] = (),
    transformed: bool = False,
) -> RedistributePlan:
    """Plan a redistribution; see :class:`RedistributePlan`. The plan is the same on every rank.

    Units are as long as their block along ``whole_axes``. The limit holds if half of it has room
    for the smallest unit: one element, or the elements along ``whole_axes``, twice if it is
    transformed. A larger unit takes a round of its own. A ValueError says that a block that moves
    has no owner.
    """
    plan = RedistributePlan(source, target, dtype, size, limit, source.cuts, transformed)
    plan.overlap.check_sources(source.grid)
    away, own = traffic(plan), plan.copied.sum(axis=1) if transformed else 0
    if (away.sum(axis=0) + away.sum(axis=1) + own).max() <= limit:  # in one round
        return plan
    parts = UNITS_A_ROUND * (2 if transformed else 1)
    cuts = _unit_cuts(source.cuts, plan.itemsize, max(1, limit // 2 // parts), whole_axes)
    return replace(plan, unit_cuts=cuts)


def _unit_cuts(
    cuts: tuple[Cuts, ...], itemsize: int, most: int, whole_axes: tuple[int, ...]
) -> tuple[Cuts, ...]:
    """Cut blocks to at most ``most`` bytes along as few axes as possible.

    The first axis comes first, so that the rows of a slice stay long.
    """
    lengths = [max((hi - lo for lo, hi in pairwise(along)), default=0) for along in cuts]
    cuts_along = list(cuts)
    for axis, along in enumerate(cuts):
        nbytes = prod(lengths) * itemsize
        if axis in whole_axes or nbytes <= most:
            continue
        thickness = max(1, lengths[axis] * most // nbytes)
        lengths[axis] = min(thickness, lengths[axis])
        parts = (
            even_spans(lo, hi, max(1, -(-(hi - lo) // thickness))) for lo, hi in pairwise(along)
        )
        cuts_along[axis] = (0, *(hi for spans in parts for _, hi in spans))
    return tuple(cuts_along)


def traffic(plan: RedistributePlan) -> Ints:
    """Return the bytes that each rank sends to each: ``traffic(plan)[sender, receiver]``."""
    counts = plan.copied.copy()
    np.fill_diagonal(counts, 0)
    return counts


def workspace(plan: RedistributePlan) -> int:
    """Return the most bytes of a rank beyond its source and target blocks.

    These are the message buffers of two rounds and, if ``plan.transformed``, the units of two
    rounds, without the workspace of ``read``.
    """
    return min(2, plan.rounds) * plan.moves.busiest


def buffer_bytes(share: int, spare: int, machine: Machine, *, transformed: bool = False) -> int:
    """Choose the limit of a plan: few rounds, but the first and the last are not hidden.

    ``share`` are the bytes of the array on a rank, ``spare`` the bytes for buffers beyond
    ``LEAST``. Of r rounds that take ``transfer`` together, one is exposed, and each costs a start:
    ``r * start + transfer / r`` is minimal if both terms are equal.
    """
    size = sum(machine.hosts)  # 0 on one host
    start = machine.latency + ROUND_SECONDS + size * PIECE_SECONDS
    rounds = max(1.0, sqrt(share / machine.rank_rate(size) / start))
    counted = (3 if transformed else 2) * share
    return min(max(LEAST, int(2 * counted / rounds)), LEAST + spare)


def cost(plan: RedistributePlan, machine: Machine) -> float:
    """Predict the seconds of a plan: packing and unpacking, overlapped with the transfer."""
    if not plan.rounds:
        return 0.0
    away = traffic(plan)
    sent, received = away.sum(axis=1), away.sum(axis=0)
    copied = 2 * int((sent + received + plan.copied.diagonal()).max())  # read and written
    moved = int(np.maximum(sent, received).max())
    transfer, start = transfer_seconds(away, machine), machine.latency if moved else 0.0
    if machine.spread_over(plan.size):  # the latency is that of a message to each rank
        start *= int(np.count_nonzero(away, axis=1).max()) / (plan.size - 1)
    seconds = pipelined(
        copied / machine.memory_bandwidth, transfer, transfer / plan.rounds, plan.rounds
    )
    return seconds + plan.rounds * (start + ROUND_SECONDS)


def settled(held: Ints, sizes: Sequence[int], even: Sequence[int]) -> Sequence[int]:
    """Let each block take the rank with most of it that still has room, else that of ``even``.

    ``held`` has what each rank has of each block, (blocks, ranks). No rank has more than the
    fullest of ``even``, or little more if block sizes differ much. Blocks choose in the order of
    their largest part on one rank.
    """
    if (held == held[:, :1]).all():
        return even
    load = np.zeros(held.shape[1], np.int64)
    owners = list(even)
    np.add.at(load, owners, sizes)
    room = int(load.max(initial=0))
    load[:] = 0
    for block in np.argsort(-held.max(axis=1, initial=0), kind="stable").tolist():
        fits = load + sizes[block] <= room
        if not fits.any():
            fits = load == load.min()
        mine = np.where(fits, held[block], -1)
        best = int(mine.argmax())
        owners[block] = even[block] if mine[even[block]] == mine[best] else best
        load[owners[block]] += sizes[block]
    return owners
