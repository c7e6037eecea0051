"""The plan of sweeps of a stencil: tiles, their regions, and the sweeps between exchanges.

::

    during the exchange   | early: the inner part of each tile
    after it              | late: the part around it | rest: sweep ..., sweep s

A pass is one sweep, or several that the device computes at once. The region of each sweep is
smaller than the one before by the stencil's radius, down to the tile itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import NamedTuple

import numpy as np

from dask_dgpu.algorithms.halo.plan import Boundary, HaloPlan, plan_halo
from dask_dgpu.algorithms.halo.plan import cost as exchange_cost
from dask_dgpu.algorithms.halo.plan import workspace as message_bytes
from dask_dgpu.algorithms.redistribute.plan import RedistributePlan, plan_redistribute
from dask_dgpu.algorithms.redistribute.plan import cost as move_cost
from dask_dgpu.algorithms.redistribute.plan import workspace as move_bytes
from dask_dgpu.kernels.stencil import Region, Taps
from graph_opt.model.cost import Machine
from graph_opt.model.layout import Bare, Cuts, Index, Layout, even_spans

Regions = list[Region]
"""The region of each sweep of a pass."""


class Passes(NamedTuple):
    """The passes of a rank, the same after every exchange.

    ``early`` are regions of each tile that need no ghost cells from other tiles, ``late`` the
    regions around them, and ``rest`` the passes after the first, or all passes without an exchange.
    """

    early: dict[Index, Regions]
    late: dict[Index, list[Regions]]
    rest: list[dict[Index, Regions]]


def passes_of(tiles: Mapping[Index, Tile], sweeps: int, *, first: int, others: int) -> Passes:
    """Return the passes of a number of sweeps over a rank's tiles.

    ``first`` is the number of sweeps in the pass that hides the exchange, 0 without an exchange;
    ``others`` the maximum for each later pass.
    """

    def late(tile: Tile) -> Iterator[Regions]:
        whole = [tile.region(sweeps - 1 - at) for at in range(first)]
        inner = tile.early(first, sweeps - first)
        for part in _around(whole[-1], inner):
            yield [tile.widened(part, first - 1 - at, each) for at, each in enumerate(whole)]

    rest = [
        {
            index: [tile.region(left - 1) for left in range(most, max(0, most - others), -1)]
            for index, tile in tiles.items()
        }
        for most in range(sweeps - first, 0, -others)
    ]
    if not first:
        return Passes({}, {}, rest)
    early = {
        index: [tile.early(at + 1, sweeps - 1 - at) for at in range(first)]
        for index, tile in tiles.items()
    }
    return Passes(early, {index: list(late(tile)) for index, tile in tiles.items()}, rest)


@dataclass(frozen=True)
class Side:
    """A tile along one axis, in positions of the array.

    ::

            first   start          stop   last
              |rim|...|______________|......|        with ghost cells of neighbours on both
                  low                      high      sides, and a rim beyond the array

    ``low`` and ``high`` are within an array that is not periodic. There is a rim if the tile or its
    ghost cells reach the end of the axis. ``length`` is that of the axis; it ``wraps`` if it is
    periodic. A sweep reads ``reach`` elements around each.
    """

    start: int
    stop: int
    low: int
    high: int
    first: int
    last: int
    length: int
    wraps: bool
    reach: int

    @classmethod
    def of(cls, cuts: Cuts, at: int, sweeps: int, reach: int, wraps: bool) -> Side:
        """Return the tile ``at`` of an axis, with ghost cells for some sweeps."""
        start, stop, length = cuts[at], cuts[at + 1], cuts[-1]
        low, high = start - sweeps * reach, stop + sweeps * reach
        if wraps:
            return cls(start, stop, low, high, low, high, length, wraps, reach)
        first = -reach if low < 0 else low
        last = length + reach if high > length else high
        low, high = max(0, low), min(length, high)
        return cls(start, stop, low, high, first, last, length, wraps, reach)

    def grown(self, sweeps: int) -> slice:
        """Return the tile with ghost cells for some sweeps, in positions of its storage."""
        start, stop = self.start - sweeps * self.reach, self.stop + sweeps * self.reach
        if not self.wraps:
            start, stop = max(0, start), min(self.length, stop)
        return slice(start - self.first, stop - self.first)

    def early(self, done: int, left: int) -> slice:
        """Return the part of ``grown(left)`` that needs no ghost cells in ``done`` sweeps."""
        whole, margin = self.grown(left), done * self.reach
        start = self.start + (margin if self.wraps or self.start else 0) - self.first
        inner = self.stop - (margin if self.wraps or self.stop < self.length else 0) - self.first
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
        return self.region(0)

    def region(self, sweeps: int) -> Region:
        """Return the tile with ghost cells for some sweeps."""
        return tuple(side.grown(sweeps) for side in self.sides)

    def early(self, done: int, left: int) -> Region:
        """Return the part of ``region(left)`` that needs no ghost cells; see ``Side``."""
        return tuple(side.early(done, left) for side in self.sides)

    def widened(self, part: Region, sweeps: int, within: Region) -> Region:
        """Return what some sweeps of a part read, within another region."""
        rows = zip(part, (sweeps * side.reach for side in self.sides), within, strict=True)
        return tuple(
            slice(max(along.start - more, whole.start), min(along.stop + more, whole.stop))
            for along, more, whole in rows
        )


def _around(region: Region, inner: Region) -> Iterator[Region]:
    """Yield the parts of a region that are not in ``inner``; some may be empty."""
    for axis, (whole, hole) in enumerate(zip(region, inner, strict=True)):
        for part in (slice(whole.start, hole.start), slice(hole.stop, whole.stop)):
            if part.start < part.stop:
                yield (*inner[:axis], part, *region[axis + 1 :])


STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Candidate numbers of sweeps between exchanges."""

REUSE = 2.0
"""Speed-up over memory bandwidth if several sweeps work in the cache."""

CALL_SECONDS = 2e-5
"""Time of the host to start a sweep of a tile, or an exchange."""

MOST_BLOCKS = 1 << 14
"""Layouts with more blocks are always redistributed."""


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
            tuple(each if each == "periodic" else None for each in self.boundary),
            self.size,
            corners=self.steps > 1 or not self.taps.star,
            wanted=[index for index in tiles.indices() if prod(tiles.block_shape(index))],
        )

    @cached_property
    def into(self) -> RedistributePlan | None:
        """The redistribution from blocks to tiles; ``None`` if they are the same."""
        return self.move(self.source, self.tiles)

    @cached_property
    def back(self) -> RedistributePlan | None:
        """The redistribution from tiles to blocks."""
        return self.move(self.tiles, self.source)

    def move(self, source: Layout, target: Layout) -> RedistributePlan | None:
        """Plan a redistribution; ``None`` if the layouts are the same."""
        if source == target:
            return None
        return plan_redistribute(source, target, self.dtype, self.size)

    def tile(self, index: Index) -> Tile:
        """Return the place of a tile and its ghost cells."""
        rows = zip(self.tiles.cuts, index, self.taps.radius, self.boundary, strict=True)
        return Tile(
            tuple(
                Side.of(cuts, at, self.steps, reach, boundary == "periodic")
                for cuts, at, reach, boundary in rows
            )
        )

    def tiles_of(self, rank: int) -> dict[Index, Tile]:
        """Return the tiles of a rank that are not empty."""
        return {index: self.tile(index) for index in self.halo.target.owned(rank)}


def plan_sweeps(
    source: Layout,
    dtype: str,
    taps: Taps,
    boundary: tuple[Boundary, ...],
    iterations: int,
    size: int,
    machine: Machine,
    *,
    arrays: int = 2,
    most_steps: int = STEPS[-1],
    room: float | None = None,
) -> SweepPlan:
    """Plan sweeps of an array; see :class:`SweepPlan`. The plan is the same on every rank.

    Tiles are the blocks, or one even tile for each rank. With s sweeps between exchanges, ghost
    cells of s times the radius are exchanged and computed by several ranks: messages and waiting
    are divided by s, and work grows a little.

    ``arrays`` is the number of arrays that a sweep reads or writes, 3 with an added array, and
    ``room`` the bytes of free memory on a rank's device.
    """
    tilings = [source] if prod(source.grid) <= MOST_BLOCKS else []
    even = _even(source, taps, size)
    if even != source and (iterations > 1 or not tilings):
        tilings.append(even)
    plans = [
        _with_steps(first, steps)
        for first in (SweepPlan(source, each, dtype, taps, boundary, 1, size) for each in tilings)
        for steps in _steps(first.tiles, taps, min(iterations, most_steps))
    ]
    fitting = [plan for plan in plans if room is None or peak(plan, arrays=arrays) <= room]
    if not fitting:
        return min(plans, key=lambda plan: peak(plan, arrays=arrays))
    return min(fitting, key=lambda plan: cost(plan, iterations, machine, arrays=arrays))


def _with_steps(plan: SweepPlan, steps: int) -> SweepPlan:
    """Return the plan with other steps; its redistributions are the same."""
    other = replace(plan, steps=steps)
    vars(other).update({"into": plan.into, "back": plan.back})
    return other


def _steps(tiles: Layout, taps: Taps, most: int) -> Iterator[int]:
    """Yield candidate numbers of sweeps: ghost cells must not outgrow an average tile."""
    averages = (-(-n // max(1, parts)) for n, parts in zip(tiles.shape, tiles.grid, strict=True))
    longest = max(averages)
    for steps in STEPS:
        if steps == 1 or (steps <= most and 2 * steps * max(taps.radius) <= longest):
            yield steps


def _even(source: Layout, taps: Taps, size: int) -> Layout:
    """Return one tile for each rank with the least surface, and then with the longest rows."""

    def surface(mesh: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        lengths = [-(-n // parts) for n, parts in zip(source.shape, mesh, strict=True)]
        volume = prod(lengths)
        faces = zip(lengths, mesh, taps.radius, strict=True)
        area = sum(reach * volume / max(1, n) for n, parts, reach in faces if parts > 1)
        return volume + area, tuple(reversed(mesh))

    return even_tiles(source.shape, min(meshes(size, source.ndim), key=surface))


def cost(plan: SweepPlan, iterations: int, machine: Machine, *, arrays: int = 2) -> float:
    """Predict the seconds of a number of sweeps, with redistributions."""
    if not iterations or not prod(plan.tiles.shape):
        return 0.0
    rounds = -(-iterations // plan.steps)
    ring = exchange_cost(plan.halo, machine, copied=False)
    busiest = max(range(plan.size), key=lambda rank: plan.tiles.share(rank, 1))
    tiles = plan.tiles_of(busiest).values()
    swept = sum(
        prod(along.stop - along.start for along in tile.region(left))
        for left in range(plan.steps)
        for tile in tiles
    )
    nbytes = swept * arrays * plan.itemsize / (REUSE if plan.steps > 1 else 1.0)
    calls = (plan.steps + 4) * max(1, len(tiles)) * CALL_SECONDS
    seconds = rounds * (ring + nbytes / machine.memory_bandwidth + calls)
    moves = [move for move in (plan.into, plan.back) if move is not None]
    inside = 4 * plan.tiles.share(busiest, plan.itemsize) / machine.memory_bandwidth
    return seconds + inside + sum(move_cost(move, machine) for move in moves)


def peak(plan: SweepPlan, *, arrays: int = 2) -> int:
    """Return the most bytes on a rank: blocks before and after, tiles and messages."""
    most = 0
    for rank in range(plan.size):
        stored = sum(prod(tile.shape) for tile in plan.tiles_of(rank).values())
        blocks = plan.source.share(rank, plan.itemsize)
        moved = 0 if plan.into is None else plan.tiles.share(rank, plan.itemsize)
        most = max(most, arrays * (stored * plan.itemsize + blocks) + moved)
    messages = 0 if plan.into is None else move_bytes(plan.into)
    return most + max(messages, 2 * message_bytes(plan.halo))


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
