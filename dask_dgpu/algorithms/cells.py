"""Cells: the parts of source blocks that are parts of target blocks.

::

    axis 0 of the source   |_____a_____|_____b_____|____c____|
    axis 0 of the target   |___A___|______B______|_____C_____|
    segments               |__aA___|aB_|____bB___|bC|___cC___|

A *segment* is what a target chunk has of one source chunk, along one axis. A *cell* is a segment of
each axis: what one target block has of one source block. Blocks and cells are numbered in row-major
order. All is in columns, because plans know the cells of all ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from math import prod
from typing import Any, NamedTuple

import numpy as np

from graph_opt.model.layout import Cuts, Index, Layout

Ints = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]
Owned = tuple[tuple[int, ...], Sequence[int] | Ints]
"""The number of blocks along each axis, and the rank of each block, -1 for none."""


class Axis(NamedTuple):
    """The segments of an axis, as columns.

    A segment starts at ``at`` in the chunk ``target``, and at ``start`` in the chunk ``source``,
    which it reads in steps of ``step``: 1, -1 or 0. ``ghost`` is whether it is a ghost cell. A
    constant has no source: -1.
    """

    target: Ints
    at: Ints
    length: Ints
    source: Ints
    start: Ints
    step: Ints
    ghost: Ints

    @classmethod
    def of(cls, rows: Sequence[tuple[int, ...]]) -> Axis:
        """Return segments that are given as rows."""
        return cls(*np.array(rows, np.int64).reshape(len(rows), len(cls._fields)).T)

    @classmethod
    def common(cls, source: Cuts, target: Cuts) -> Axis:
        """Overlap two ways to cut an axis, without empty chunks."""
        edges = np.unique(np.array((*source, *target), np.int64))
        first, length = edges[:-1], np.diff(edges)
        old, new = chunk_at(source, first), chunk_at(target, first)
        at, start = first - np.array(target)[new], first - np.array(source)[old]
        return cls(new, at, length, old, start, np.ones_like(first), np.zeros_like(first))


class Cells:
    """The cells of all target blocks with an owner, as columns.

    Each has a ``target`` and a ``source`` block, their ranks, ``receiver`` and ``sender``, and a
    ``length`` in elements. A constant has the axis ``constant``, the last of several, and one rank;
    other cells have -1 there. A ``ghost`` is a ghost cell along some axis.
    """

    def __init__(self, axes: Sequence[Axis], sources: Owned, targets: Owned) -> None:
        self._axes, grid = axes, sources[0]
        sizes = combined(np.multiply, (axis.length for axis in axes), 1)
        target = row_major([axis.target for axis in axes], targets[0])
        ghosts = combined(np.add, (axis.ghost for axis in axes), 0)
        beyond = (np.where(axis.source < 0, k, -1) for k, axis in enumerate(axes))
        receiver = np.array(targets[1], np.int64)[target]
        self._number = chosen = np.flatnonzero((receiver >= 0) & (sizes > 0))
        self.target, self.length, self.ghost = target[chosen], sizes[chosen], ghosts[chosen] > 0
        self.constant = combined(np.maximum, beyond, -1)[chosen]
        source = row_major([axis.source for axis in axes], grid)[chosen]
        self.source = np.where(self.constant < 0, source, -1)
        self.receiver = receiver[chosen]
        owners = np.append(np.array(sources[1], np.int64), -1)
        self.sender = np.where(self.constant < 0, owners[self.source], self.receiver)

    def column(self, name: str, cells: Ints) -> Ints:
        """Return a column of the axes' segments for some cells: (cells, axes)."""
        counts = tuple(len(axis.target) for axis in self._axes)
        segments = unravel(self._number[cells], counts)
        return values_at((getattr(axis, name) for axis in self._axes), segments)

    def check_sources(self, grid: tuple[int, ...]) -> None:
        """Raise a ValueError if a source block has no owner."""
        missing = indices_at(self.source[self.sender < 0][:1], grid)
        if missing:
            raise ValueError(f"expected an owner of block {missing[0]}, got none")


class Selected(NamedTuple):
    """Some cells, by round, then by peer, and the messages between one rank and its peers.

    ``at`` is the start of a cell in the message of its round, ``edges`` are the first cells of the
    rounds, and ``counts`` the elements for each peer: (rounds, ranks).
    """

    cells: Ints
    at: Ints
    edges: Ints
    counts: Ints

    @classmethod
    def of(cls, cells: Cells, which: Mask, peer: Ints, rounds: Ints, shape: Index) -> Selected:
        """Select cells with these peers and rounds; ``shape`` is that of ``counts``."""
        some = np.flatnonzero(which)
        some = some[np.lexsort((peer[some], rounds[some]))]
        lengths, present = cells.length[some], rounds[some]
        edges = round_edges(present, shape[0])
        stops = np.concatenate([[0], np.cumsum(lengths)])
        at = stops[:-1] - stops[edges[present]]
        return cls(some, at, edges, table_of(present, peer[some], lengths, shape))


def round_edges(rounds: Ints, count: int) -> Ints:
    """Return the start of each round in ascending ``rounds``, and the end of the last."""
    return np.searchsorted(rounds, np.arange(count + 1))


def elements(layout: Layout) -> Ints:
    """Return the number of elements of each block."""
    return combined(np.multiply, map(np.diff, layout.cuts), 1)


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
    values = np.empty(index.shape, np.int64)
    for k, column in enumerate(columns):
        values[:, k] = np.asarray(column, np.int64)[index[:, k]]
    return values


def table_of(rows: Ints, columns: Ints, weights: Ints, shape: Index) -> Ints:
    """Sum weights by row and column of a table."""
    sums = np.bincount(rows * shape[1] + columns, weights, prod(shape))
    return sums.astype(np.int64).reshape(shape)
