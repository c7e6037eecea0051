"""The plan of sweeps of a stencil: tiles, and the number of sweeps between exchanges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np

from dask_dgpu.algorithms.halo.cells import Boundary
from dask_dgpu.algorithms.halo.plan import HaloPlan, plan_halo
from dask_dgpu.algorithms.halo.plan import cost as exchange_cost
from dask_dgpu.algorithms.halo.plan import workspace as message_bytes
from dask_dgpu.algorithms.redistribute.plan import RedistributePlan, plan_redistribute
from dask_dgpu.algorithms.redistribute.plan import cost as move_cost
from dask_dgpu.algorithms.redistribute.plan import workspace as move_bytes
from dask_dgpu.algorithms.stencil.regions import Side, Tile
from dask_dgpu.kernels.stencil import Taps
from graph_opt.model.cost import Machine
from graph_opt.model.layout import Bare, Index, Layout, even_spans

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
