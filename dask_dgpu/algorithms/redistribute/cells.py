"""Where two grids of blocks over the same array overlap.

::

    axis 0 of the source   |_____a_____|_____b_____|____c____|
    axis 0 of the target   |___A___|______B______|_____C_____|
    segments               |__aA___|aB_|____bB___|bC|___cC___|

A *segment* is where a source chunk and a target chunk of one axis overlap, a
*cell* is a segment of each axis: the part of one source block that goes into one
target block. Cells are numbered in row-major order of their segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from graph_opt.model.layout import Cuts, Index

Ints = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class Axis:
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


def chunk_at(cuts: Cuts, positions: Ints) -> Ints:
    """Return the chunk of each position of an axis."""
    return np.searchsorted(np.array(cuts, np.int64), positions, side="right") - 1


class Cells:
    """All cells of two grids over one shape, given the cuts of each axis."""

    def __init__(self, source: tuple[Cuts, ...], target: tuple[Cuts, ...]) -> None:
        self.axes = [Axis.of(*cuts) for cuts in zip(source, target, strict=True)]
        self.shape = tuple(len(axis.start) for axis in self.axes)
        self._grids = [tuple(len(cuts) - 1 for cuts in grid) for grid in (source, target)]

    @cached_property
    def source(self) -> Ints:
        """The source block of each cell, as its place in row-major order."""
        return row_major([axis.source for axis in self.axes], self._grids[0])

    @cached_property
    def target(self) -> Ints:
        """The target block of each cell, as its place in row-major order."""
        return row_major([axis.target for axis in self.axes], self._grids[1])

    @cached_property
    def sizes(self) -> Ints:
        """The number of elements of each cell."""
        return volumes([axis.length for axis in self.axes])

    def corners(self, cells: Ints) -> tuple[Ints, Ints]:
        """Return the first position and the lengths of some cells, each (cells, axes)."""
        start, shape = np.empty((2, len(cells), len(self.axes)), np.int64)
        segments = unravel(cells, self.shape)
        for k, axis in enumerate(self.axes):
            start[:, k], shape[:, k] = axis.start[segments[:, k]], axis.length[segments[:, k]]
        return start, shape


def row_major(places: Sequence[Ints], grid: Sequence[int]) -> Ints:
    """Number the blocks at every combination of ``places`` along the axes of a grid."""
    total = np.zeros((), np.int64)
    for along, blocks in zip(places, grid, strict=True):
        total = total[..., None] * blocks + along
    return total.reshape(-1)


def volumes(lengths: Sequence[Ints]) -> Ints:
    """Return the products of every combination of lengths along the axes."""
    total = np.ones((), np.int64)
    for along in lengths:
        total = total[..., None] * along
    return total.reshape(-1)


def unravel(places: Ints, grid: tuple[int, ...]) -> Ints:
    """Return the indices (places, axes) of places in row-major order."""
    if not grid or not prod(grid):
        return np.zeros((len(places), len(grid)), np.int64)
    return np.stack(np.unravel_index(places, grid), axis=1)


def indices_at(places: Ints, grid: tuple[int, ...]) -> list[Index]:
    """Return the blocks at places in row-major order."""
    return list(map(tuple, unravel(places, grid).tolist()))


def table_of(rows: Ints, columns: Ints, weights: Ints, shape: tuple[int, int]) -> Ints:
    """Sum weights by row and column of a table."""
    sums = np.bincount(rows * shape[1] + columns, weights, prod(shape))
    return sums.astype(np.int64).reshape(shape)
