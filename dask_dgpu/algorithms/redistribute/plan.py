"""The plan of a redistribution: the pieces that move, their rounds, and the cost.

::

    axis 0 of the source   |_____a_____|_____b_____|____c____|
    axis 0 of the target   |___A___|______B______|_____C_____|
    segments               |__aA___|aB_|____bB___|bC|___cC___|

A *segment* is where a source chunk and a target chunk of one axis overlap, a *cell* is a
segment of each axis: the part of one source block that goes into one target block. Cells,
blocks and units are numbered in row-major order.

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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import pairwise
from math import prod, sqrt
from typing import Any, NamedTuple

import numpy as np

from graph_opt.model.cost import Hosts, Machine, pipelined, relayed_bytes, relays, transfer_seconds
from graph_opt.model.layout import Bare, Cuts, Index, Layout, Lengths, even_spans

Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]


class Overlap(NamedTuple):
    """All pairs of a source block and a target block that overlap.

    Attributes
    ----------
    source, target : array of int
        Their numbers.
    sender, receiver : array of int
        Their ranks, -1 for none.
    length : array of int
        Number of common elements.
    kept : array of bool
        Whether both are the same block on the same rank, which is passed on.
    """

    source: Ints
    target: Ints
    sender: Ints
    receiver: Ints
    length: Ints
    kept: Mask


def overlap(source: Layout, target: Layout) -> Overlap:
    """Compare the blocks of two layouts of an array."""
    cells = Cells(source.cuts, target.cuts)
    sizes = [combined(np.multiply, map(np.diff, layout.cuts), 1) for layout in (source, target)]
    whole = (sizes[0][cells.source] == cells.sizes) & (sizes[1][cells.target] == cells.sizes)
    sender = np.array(source.owners, np.int64)[cells.source]
    receiver = np.array(target.owners, np.int64)[cells.target]
    kept = whole & (sender == receiver) & (sender >= 0)
    return Overlap(cells.source, cells.target, sender, receiver, cells.sizes, kept)


class Moves:
    """The pieces of a redistribution, their units, and their rounds.

    A *unit* is a source block or a slice of one, a *piece* the overlap of a unit with a target
    block. Every rank computes the same, so no counts are exchanged.

    Attributes
    ----------
    cells : Cells
        Overlaps of units and target blocks.
    cell, unit, sender, receiver, length, round : array of int
        The cell, unit, ranks, number of elements and round of each piece.
    places, owner, unit_round : array of int
        The number of each unit among all units, its rank and its round.
    rounds : int
        Number of rounds.
    busiest : int
        Most bytes of a rank in a round.
    """

    def __init__(self, plan: RedistributePlan) -> None:
        source, target, blocks = plan.source, plan.target, plan.overlap
        kept = np.zeros(len(source.owners), bool)
        kept[blocks.source[blocks.kept]] = True
        self.cells = cells = Cells(plan.unit_cuts, target.cuts)
        chunks = [
            chunk_at(cuts, axis.start) for cuts, axis in zip(source.cuts, cells.axes, strict=True)
        ]
        block = row_major(chunks, source.grid)
        receivers = np.array(target.owners, np.int64)[cells.target]
        self.cell = np.flatnonzero((receivers >= 0) & ~kept[block])
        self.sender = np.array(source.owners, np.int64)[block[self.cell]]
        self.receiver = receivers[self.cell]
        self.length = cells.sizes[self.cell]
        place = cells.source[self.cell]
        used = np.zeros(prod(grid_of(plan.unit_cuts)), bool)
        used[place] = True  # np.unique would sort millions of pieces
        self.places = np.flatnonzero(used)
        self.unit = (np.cumsum(used) - 1)[place]
        self.owner = np.zeros(len(self.places), np.int64)
        self.owner[self.unit] = self.sender
        shape = len(self.places), plan.size
        sent = table_of(self.unit, self.receiver, self.length * plan.itemsize, shape)
        self.unit_round, self.rounds, self.busiest = _dealt(
            self.owner, sent, plan.limit, transformed=plan.transformed
        )
        self.round = self.unit_round[self.unit]


class Axis(NamedTuple):
    """The segments of one axis: the chunks that overlap, start and length."""

    source: Ints
    target: Ints
    start: Ints
    length: Ints

    @classmethod
    def of(cls, source: Cuts, target: Cuts) -> Axis:
        """Overlap two ways to cut an axis, without empty chunks."""
        edges = np.unique(np.array((*source, *target), np.int64))
        start, length = edges[:-1], np.diff(edges)
        return cls(chunk_at(source, start), chunk_at(target, start), start, length)


class Cells:
    """All cells of two grids over one shape, given the cuts of each axis."""

    def __init__(self, source: tuple[Cuts, ...], target: tuple[Cuts, ...]) -> None:
        self.axes = [Axis.of(*cuts) for cuts in zip(source, target, strict=True)]
        self._grids = grid_of(source), grid_of(target)

    @cached_property
    def source(self) -> Ints:
        """The source block of each cell."""
        return row_major([axis.source for axis in self.axes], self._grids[0])

    @cached_property
    def target(self) -> Ints:
        """The target block of each cell."""
        return row_major([axis.target for axis in self.axes], self._grids[1])

    @cached_property
    def sizes(self) -> Ints:
        """The number of elements of each cell."""
        return combined(np.multiply, (axis.length for axis in self.axes), 1)

    def corners(self, cells: Ints) -> tuple[Ints, Ints]:
        """Return the first position and the lengths of some cells, each (cells, axes)."""
        segments = unravel(cells, tuple(len(axis.start) for axis in self.axes))
        return (
            values_at((axis.start for axis in self.axes), segments),
            values_at((axis.length for axis in self.axes), segments),
        )


def grid_of(cuts: Sequence[Cuts]) -> tuple[int, ...]:
    """Return the number of blocks along each axis."""
    return tuple(len(along) - 1 for along in cuts)


def chunk_at(cuts: Cuts, positions: Ints) -> Ints:
    """Return the chunk of each position of an axis."""
    return np.searchsorted(np.array(cuts, np.int64), positions, side="right") - 1


def combined(operation: np.ufunc, columns: Iterable[Ints], start: int) -> Ints:
    """Combine the values of every combination of a row of each column."""
    whole: Ints = reduce(operation.outer, columns, np.array(start, np.int64))
    return whole.reshape(-1)


def row_major(places: Sequence[Ints], grid: Sequence[int]) -> Ints:
    """Number the blocks at every combination of ``places`` along the axes of a grid."""
    total = np.zeros((), np.int64)
    for along, blocks in zip(places, grid, strict=True):
        total = total[..., None] * blocks + along
    return total.reshape(-1)


def unravel(places: Ints, grid: tuple[int, ...]) -> Ints:
    """Return the indices (places, axes) of numbers in row-major order."""
    if not grid or not prod(grid):
        return np.zeros((len(places), len(grid)), np.int64)
    return np.stack(np.unravel_index(places, grid), axis=1)


def indices_at(places: Ints, grid: tuple[int, ...]) -> list[Index]:
    """Return the blocks of numbers in row-major order."""
    return list(map(tuple, unravel(places, grid).tolist()))


def values_at(columns: Iterable[Sequence[int] | Ints], index: Ints) -> Ints:
    """Return the value of each axis' column at each index: (indices, axes)."""
    found = np.empty(index.shape, np.int64)
    for k, column in enumerate(columns):
        found[:, k] = np.asarray(column, np.int64)[index[:, k]]
    return found


def table_of(rows: Ints, columns: Ints, weights: Ints, shape: tuple[int, int]) -> Ints:
    """Sum weights by row and column of a table."""
    sums = np.bincount(rows * shape[1] + columns, weights, prod(shape))
    return sums.astype(np.int64).reshape(shape)


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
    edges = _edges(phase[order], total, limit)
    which = np.empty(len(owner), np.int64)
    which[order] = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
    return which, len(edges) - 1, _busiest(total, edges)


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


def _edges(phase: Floats, total: Ints, limit: int) -> Ints:
    """Cut units, in the order of their phases, into rounds.

    ``total[k]`` are the bytes of each rank in the first k units.
    """
    if not len(phase):
        return np.zeros(1, np.int64)
    whole = int(total[-1].max())
    if whole <= limit:
        return np.array([0, len(phase)])
    capacity = max(1, limit // 2)
    least = -(-whole // capacity)
    count = least
    while count <= least + least // 4 + 2:
        edges = np.searchsorted(phase, np.arange(count + 1) / count)
        if _busiest(total, edges) <= capacity:
            return edges[np.diff(edges, prepend=-1) > 0]
        count += max(1, count // 32)
    return _greedy(total, capacity)


def _greedy(total: Ints, capacity: int) -> Ints:
    """Close a round before the unit that would exceed the capacity of a rank."""
    columns = [np.ascontiguousarray(column) for column in total.T]
    edges = [0]
    while edges[-1] < len(total) - 1:
        at = edges[-1]
        fits = (np.searchsorted(c, c[at] + capacity, side="right") - 1 for c in columns)
        edges.append(max(at + 1, int(min(fits))))
    return np.array(edges)


def _busiest(total: Ints, edges: Ints) -> int:
    """Return the most bytes of a rank in a round."""
    return int(np.diff(total[edges], axis=0).max(initial=0))


LEAST = 64 << 20
"""Bytes that the buffers of a redistribution may always take."""

ROUND_SECONDS = 1e-3
"""Time of the host to describe, pack and send a round of any size."""

PIECE_SECONDS = 2e-5
"""Time of the host for the messages of a round, for each rank; it counts on several hosts."""

MANY = 128
"""Ranks above which units are larger: a plan knows the pieces of all ranks."""

UNITS_A_ROUND = 4
"""Approximate number of units that fill a rank's buffers in a round."""


@dataclass(frozen=True)
class RedistributePlan(Bare):
    """The plan of one redistribution on ``size`` ranks.

    Parameters
    ----------
    source, target : Layout
        Layouts before and after, of the same shape.
    dtype : str
        The dtype of the blocks.
    size : int
        Number of ranks of the communicator.
    limit : int
        Maximum bytes of a rank's message buffers.
    unit_cuts : tuple of tuple of int
        For each axis the cuts of the source and more. Each unit between them is read and sent in
        one round.
    transformed : bool
        Whether the caller's ``read`` computes units; their memory then counts within ``limit``.
    hosts : tuple of int
        Number of ranks on each host if rounds are exchanged in two levels, within hosts and then
        between them, with the memory of relays beyond ``limit``; else empty.
    """

    source: Layout
    target: Layout
    dtype: str
    size: int
    limit: int
    unit_cuts: tuple[Cuts, ...]
    transformed: bool = False
    hosts: Hosts = ()

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
    def overlap(self) -> Overlap:
        """Pairs of overlapping source and target blocks."""
        return overlap(self.source, self.target)

    @cached_property
    def copied(self) -> Ints:
        """Bytes of rank p's blocks for rank q, without kept blocks: ``copied[p, q]``."""
        _, _, sender, receiver, length, kept = self.overlap
        some = (sender >= 0) & (receiver >= 0) & ~kept
        shape = self.size, self.size
        return table_of(sender[some], receiver[some], length[some], shape) * self.itemsize


def plan_redistribute(
    source: Layout,
    target: Layout,
    dtype: str,
    size: int,
    *,
    limit: int = 64 << 20,
    whole_axes: tuple[int, ...] = (),
    transformed: bool = False,
    units: int = UNITS_A_ROUND,
) -> RedistributePlan:
    """Plan a redistribution; see :class:`RedistributePlan`. The plan is the same on every rank.

    Units are as long as their block along ``whole_axes``. The limit holds if half of it has room
    for the smallest unit: one element, or the elements along ``whole_axes``, twice if it is
    transformed. A larger unit takes a round of its own. About ``units`` fill a round: on
    many ranks fewer do, since their pieces are many and small already.

    Raises
    ------
    ValueError
        If the shapes differ, an owner is no rank, a wanted block has no owner, or another argument
        is out of range.
    """
    _check(source, target, size, limit, whole_axes)
    plan = RedistributePlan(source, target, dtype, size, limit, source.cuts, transformed)
    missing = (plan.overlap.sender < 0) & (plan.overlap.receiver >= 0)
    if missing.any():
        (index,) = indices_at(plan.overlap.source[missing][:1], source.grid)
        raise ValueError(f"expected an owner of block {index} in source, got none")
    away, own = traffic(plan), plan.copied.sum(axis=1) if transformed else 0
    if (away.sum(axis=0) + away.sum(axis=1) + own).max() <= limit:  # in one round
        return plan
    parts = units * (2 if transformed else 1)
    cuts = _unit_cuts(source.cuts, plan.itemsize, max(1, limit // 2 // parts), whole_axes)
    return replace(plan, unit_cuts=cuts)


def in_levels(plan: RedistributePlan, machine: Machine) -> RedistributePlan:
    """Return the plan with exchanges in two levels, if they are predicted to be quicker.

    They send fewer and larger messages between hosts, but most bytes travel within hosts too.
    """
    if not machine.two_level(plan.size):
        return plan
    levels = replace(plan, hosts=machine.hosts)
    vars(levels).update({"overlap": plan.overlap, "moves": plan.moves, "copied": plan.copied})
    return levels if cost(levels, machine) < cost(plan, machine) else plan


def _unit_cuts(
    cuts: tuple[Cuts, ...], itemsize: int, most: int, whole_axes: tuple[int, ...]
) -> tuple[Cuts, ...]:
    """Cut blocks to at most ``most`` bytes along as few axes as possible.

    The first axis comes first, so that the rows of a slice stay long.
    """
    whole = {axis % len(cuts) for axis in whole_axes}
    lengths = [max((hi - lo for lo, hi in pairwise(along)), default=0) for along in cuts]
    found = list(cuts)
    for axis, along in enumerate(cuts):
        nbytes = prod(lengths) * itemsize
        if axis in whole or nbytes <= most:
            continue
        thickness = max(1, lengths[axis] * most // nbytes)
        lengths[axis] = min(thickness, lengths[axis])
        found[axis] = (0, *(hi for chunk in pairwise(along) for hi in _ends(*chunk, thickness)))
    return tuple(found)


def _ends(start: int, stop: int, thickness: int) -> list[int]:
    """Return the ends of the parts of a chunk, none thicker than this."""
    parts = max(1, -(-(stop - start) // thickness))
    return [hi for _, hi in even_spans(start, stop, parts)]


def _check(
    source: Layout, target: Layout, size: int, limit: int, whole_axes: tuple[int, ...]
) -> None:
    if source.shape != target.shape:
        raise ValueError(
            f"expected source and target of one shape, got {source.shape} and {target.shape}"
        )
    check_owners("source", source, size)
    check_owners("target", target, size)
    if limit < 1:
        raise ValueError(f"expected a positive limit, got {limit}")
    for axis in whole_axes:
        if not -source.ndim <= axis < source.ndim:
            raise ValueError(f"expected whole_axes of {source.ndim} axes, got {axis}")


def check_owners(name: str, layout: Layout, size: int) -> None:
    """Raise a ValueError if an owner is neither a rank nor -1."""
    for owner in (min(layout.owners, default=-1), max(layout.owners, default=-1)):
        if not -1 <= owner < size:
            raise ValueError(f"expected owners -1 to {size - 1} in {name}, got {owner}")


def traffic(plan: RedistributePlan) -> Ints:
    """Return the bytes that each rank sends to each: ``traffic(plan)[sender, receiver]``."""
    counts = plan.copied.copy()
    np.fill_diagonal(counts, 0)
    return counts


def workspace(plan: RedistributePlan) -> int:
    """Return the most bytes of a rank beyond its source and target blocks.

    These are the message buffers of two rounds and, if ``plan.transformed``, the units of two
    rounds, without the workspace of ``read``. In two levels, a rank also has what it relays in a
    round, joined by sender and by receiver, and its own part for relays.
    """
    relayed = 2 * _relayed_in_round(plan) + plan.moves.busiest if plan.hosts else 0
    return min(2, plan.rounds) * plan.moves.busiest + relayed


def _relayed_in_round(plan: RedistributePlan) -> int:
    """Return the most bytes that a rank relays in a round."""
    moves = plan.moves
    relay = relays(plan.hosts)[moves.sender, moves.receiver]
    there = relay >= 0
    nbytes = moves.length[there] * plan.itemsize
    shape = max(1, plan.rounds), plan.size
    return int(table_of(moves.round[there], relay[there], nbytes, shape).max(initial=0))


def units_for(size: int, machine: Machine) -> int:
    """Return the units that fill a round: fewer for very many ranks on several hosts."""
    return UNITS_A_ROUND // 2 if machine.spread_over(size) and size > MANY else UNITS_A_ROUND


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
    if plan.hosts:
        relayed = int(relayed_bytes(away, plan.hosts).max())
        transfer += relayed / machine.bandwidth + 4 * relayed / machine.memory_bandwidth
        start = machine.collective_seconds(plan.size)
    elif machine.spread_over(plan.size):  # the latency is that of a message to each rank
        start *= int(np.count_nonzero(away, axis=1).max()) / (plan.size - 1)
    seconds = pipelined(
        copied / machine.memory_bandwidth, transfer, transfer / plan.rounds, plan.rounds
    )
    return seconds + plan.rounds * (start + ROUND_SECONDS)


def settled(held: Lengths, sizes: Sequence[int], even: Sequence[int]) -> Sequence[int]:
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
