"""The plan of sweeps of a stencil: tiles, and the number of sweeps between exchanges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from dask_dgpu.algorithms.halo import Boundary, HaloPlan, plan_halo
from dask_dgpu.algorithms.redistribute import RedistributePlan, plan_redistribute
from dask_dgpu.kernels.stencil import Region, Taps
from graph_opt.model.layout import Bare, Cuts, Index, Layout, even_spans


@dataclass(frozen=True)
class StencilTask:
    """A stencil with boundaries, and the number of its applications."""

    dtype: str
    taps: Taps
    boundary: tuple[Boundary, ...]
    iterations: int

    @property
    def operation(self) -> str:
        """The name of the operation."""
        return "stencil"

    @property
    def operations(self) -> int:
        """Floating-point operations of a sweep for each element."""
        return 2 * len(self.taps.weights)

    @property
    def reach(self) -> tuple[int, ...]:
        """How far a sweep reads around each element, along each axis."""
        return self.taps.radius


@dataclass(frozen=True)
class SweepPlan(Bare):
    """Sweeps of an array on ``size`` ranks.

    Parameters
    ----------
    source : Layout
        The layout of the blocks, before and after.
    tiles : Layout
        The layout during the sweeps, of the same shape.
    dtype : str
        float32, float64, complex64 or complex128.
    taps : Taps
        The stencil.
    boundary : tuple of str or number
        For each axis ``"periodic"``, ``"reflect"``, ``"mirror"``, ``"nearest"`` or a constant.
    steps : int
        Sweeps between two exchanges.
    size : int
        Number of ranks.
    """

    source: Layout
    tiles: Layout
    dtype: str
    taps: Taps
    boundary: tuple[Boundary, ...]
    steps: int
    size: int

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return np.dtype(self.dtype).itemsize

    @cached_property
    def halo(self) -> HaloPlan:
        """The exchange of ghost cells within the array, or around a periodic array."""
        tiles = self.tiles
        return plan_halo(
            tiles,
            self.dtype,
            tuple((self.steps * reach,) * 2 for reach in self.taps.radius),
            tuple("periodic" if self.wraps(axis) else None for axis in range(tiles.ndim)),
            self.size,
            corners=self.steps > 1 or not self.taps.star,
            wanted=[index for index in tiles.indices() if prod(tiles.block_shape(index))],
        )

    @cached_property
    def into(self) -> RedistributePlan | None:
        """The redistribution from blocks to tiles; ``None`` if they are the same."""
        if self.tiles == self.source:
            return None
        return plan_redistribute(self.source, self.tiles, self.dtype, self.size)

    @cached_property
    def back(self) -> RedistributePlan | None:
        """The redistribution from tiles to blocks."""
        if self.tiles == self.source:
            return None
        return plan_redistribute(self.tiles, self.source, self.dtype, self.size)

    def wraps(self, axis: int) -> bool:
        """Whether an axis is periodic."""
        return self.boundary[axis] == "periodic"

    def tile(self, index: Index) -> Tile:
        """Return the place of a tile and its ghost cells."""
        rows = zip(self.tiles.cuts, index, self.taps.radius, self.boundary, strict=True)
        return Tile(
            tuple(
                Side.of(cuts, at, self.steps * reach, reach, boundary == "periodic")
                for cuts, at, reach, boundary in rows
            )
        )

    def tiles_of(self, rank: int) -> dict[Index, Tile]:
        """Return the tiles of a rank that are not empty."""
        return {index: self.tile(index) for index in self.halo.target.owned(rank)}


@dataclass(frozen=True)
class Side:
    """A tile along one axis, in positions of the array.

    ::

            first   start          stop   last
              |rim|...|______________|......|        with ghost cells of neighbours on both
                  low                      high      sides, and a rim beyond the array

    ``low`` and ``high`` are within an array that is not periodic. There is a rim if the tile or its
    ghost cells reach the end of the axis. ``length`` is that of the axis; it ``wraps`` if it is
    periodic.
    """

    start: int
    stop: int
    low: int
    high: int
    first: int
    last: int
    length: int
    wraps: bool

    @classmethod
    def of(cls, cuts: Cuts, at: int, depth: int, reach: int, wraps: bool) -> Side:
        """Return the tile ``at`` of an axis, for a stencil that reads ``reach`` elements around."""
        start, stop, length = cuts[at], cuts[at + 1], cuts[-1]
        low, high = start - depth, stop + depth
        if wraps:
            return cls(start, stop, low, high, low, high, length, wraps)
        first = -reach if low < 0 else low
        last = length + reach if high > length else high
        return cls(start, stop, max(0, low), min(length, high), first, last, length, wraps)

    def grown(self, margin: int) -> slice:
        """Return the tile with a margin of ghost cells, in positions of its storage."""
        start, stop = self.start - margin, self.stop + margin
        if not self.wraps:
            start, stop = max(0, start), min(self.length, stop)
        return slice(start - self.first, stop - self.first)

    def early(self, reach: int, margin: int) -> slice:
        """Return the part of ``grown(margin)`` that needs no ghost cells within ``reach``."""
        whole = self.grown(margin)
        start = self.start + (reach if self.wraps or self.start else 0) - self.first
        inner = self.stop - (reach if self.wraps or self.stop < self.length else 0) - self.first
        return slice(min(start, whole.stop), max(min(start, whole.stop), inner))


@dataclass(frozen=True)
class Tile:
    """A tile and its ghost cells: a side along each axis."""

    sides: tuple[Side, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of its storage."""
        return tuple(side.last - side.first for side in self.sides)

    @property
    def extended(self) -> Region:
        """The tile and its exchanged ghost cells."""
        return tuple(slice(s.low - s.first, s.high - s.first) for s in self.sides)

    @property
    def rims(self) -> tuple[tuple[int, int], ...]:
        """Widths of the rims beyond the array."""
        return tuple((s.low - s.first, s.last - s.high) for s in self.sides)

    @property
    def inside(self) -> Region:
        """The tile itself, without ghost cells."""
        return self.region((0,) * len(self.sides))

    def region(self, margins: tuple[int, ...]) -> Region:
        """Return the tile with margins of ghost cells along each axis."""
        pairs = zip(self.sides, margins, strict=True)
        return tuple(side.grown(margin) for side, margin in pairs)

    def early(self, radius: tuple[int, ...], margins: tuple[int, ...]) -> Region:
        """Return the part of ``region(margins)`` that needs no ghost cells; see ``Side``."""
        rows = zip(self.sides, radius, margins, strict=True)
        return tuple(side.early(reach, margin) for side, reach, margin in rows)


def widened(region: Region, by: tuple[int, ...], within: Region) -> Region:
    """Return a region with a margin, within another region."""
    return tuple(
        slice(max(part.start - more, whole.start), min(part.stop + more, whole.stop))
        for part, more, whole in zip(region, by, within, strict=True)
    )


def around(region: Region, inner: Region) -> Iterator[Region]:
    """Yield the parts of a region that are not in ``inner``; some may be empty."""
    for axis, (whole, hole) in enumerate(zip(region, inner, strict=True)):
        for part in (slice(whole.start, hole.start), slice(hole.stop, whole.stop)):
            if part.start < part.stop:
                yield (*inner[:axis], part, *region[axis + 1 :])


def even_tiles(shape: tuple[int, ...], mesh: tuple[int, ...]) -> Layout:
    """Return one even tile for each rank of a mesh."""
    cuts = tuple(
        (0, *(hi for _, hi in even_spans(0, length, parts)))
        for length, parts in zip(shape, mesh, strict=True)
    )
    return Layout(cuts, tuple(range(prod(mesh))))


def meshes(size: int, ndim: int) -> Iterator[tuple[int, ...]]:
    """Yield all meshes of ranks along a number of axes."""
    if ndim == 1:
        yield (size,)
        return
    for parts in range(1, size + 1):
        if size % parts == 0:
            for rest in meshes(size // parts, ndim - 1):
                yield (parts, *rest)
