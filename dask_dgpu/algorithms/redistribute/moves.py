"""The pieces that move, and their rounds, for all ranks.

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
from functools import cached_property, reduce
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from graph_opt.model.layout import Cuts, Index, Layout

if TYPE_CHECKING:
    from dask_dgpu.algorithms.redistribute.plan import RedistributePlan

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
