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
from math import ceil, prod
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dask_dgpu.algorithms.halo.plan import Boundary, HaloPlan, plan_halo
from dask_dgpu.algorithms.halo.plan import cost as exchange_cost
from dask_dgpu.algorithms.halo.plan import workspace as message_bytes
from dask_dgpu.algorithms.redistribute.plan import RedistributePlan, plan_redistribute
from dask_dgpu.algorithms.redistribute.plan import cost as move_cost
from dask_dgpu.algorithms.redistribute.plan import workspace as move_bytes
from dask_dgpu.kernels.stencil import Region, Taps, neighbours_mean
from graph_opt.model.cost import Machine
from graph_opt.model.layout import Bare, Index, Layout, Span, even_spans

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
        whole = [tile.region(sweeps - 1 - i) for i in range(first)]
        inner = tile.early(first, sweeps - first)
        for part in _around(whole[-1], inner):
            yield [tile.widened(part, first - 1 - i, each) for i, each in enumerate(whole)]

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
        index: [tile.early(i + 1, sweeps - 1 - i) for i in range(first)]
        for index, tile in tiles.items()
    }
    return Passes(early, {index: list(late(tile)) for index, tile in tiles.items()}, rest)


@dataclass(frozen=True)
class Side:
    """A tile along one axis of some ``length``, in positions of the array.

    ::

            start          stop
        |rim|...|______________|......|        with ghost cells of neighbours on both
              within the array                 sides, and a rim beyond the array

    There are ghost cells for so many ``sweeps``, each of which reads ``reach`` elements around
    each, and a rim if these reach the end of an axis that does not wrap, as a periodic one does.
    """

    start: int
    stop: int
    length: int
    wraps: bool
    reach: int
    sweeps: int

    def within(self, sweeps: int) -> Span:
        """Return the tile with ghost cells for some sweeps, without those beyond the array."""
        start, stop = self.start - sweeps * self.reach, self.stop + sweeps * self.reach
        return (start, stop) if self.wraps else (max(0, start), min(self.length, stop))

    @cached_property
    def stored(self) -> Span:
        """The tile with all ghost cells and rims."""
        start, stop = self.within(self.sweeps)
        ghosts = 0 if self.wraps else self.sweeps * self.reach
        before, after = self.start < ghosts, self.stop + ghosts > self.length
        return start - before * self.reach, stop + after * self.reach

    def grown(self, sweeps: int) -> slice:
        """Return the tile with ghost cells for some sweeps, in positions of its storage."""
        start, stop = self.within(sweeps)
        return slice(start - self.stored[0], stop - self.stored[0])

    def early(self, done: int, left: int) -> slice:
        """Return the part of ``grown(left)`` that needs no ghost cells in ``done`` sweeps."""
        whole, margin, first = self.grown(left), done * self.reach, self.stored[0]
        start = self.start + (margin if self.wraps or self.start else 0) - first
        stop = self.stop - (margin if self.wraps or self.stop < self.length else 0) - first
        return slice(min(start, whole.stop), max(min(start, whole.stop), stop))


@dataclass(frozen=True)
class Tile:
    """A tile and its ghost cells: a side along each axis."""

    sides: tuple[Side, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of its storage."""
        return tuple(last - first for first, last in (side.stored for side in self.sides))

    @property
    def extended(self) -> Region:
        """The tile and its exchanged ghost cells."""
        return tuple(side.grown(side.sweeps) for side in self.sides)

    @property
    def rims(self) -> tuple[tuple[int, int], ...]:
        """Widths of the rims beyond the array."""
        pairs = zip(self.extended, self.shape, strict=True)
        return tuple((along.start, length - along.stop) for along, length in pairs)

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

CHECK_SHARE = 0.02
"""Maximum share of the time for residuals."""

LEAST_ROUNDS = 30
"""Minimum number of exchanges of all iterations of Jacobi's: it ends only after one."""

LEAST_SHARE = 500
"""The pause between residuals is at least this fraction of the exchanges so far."""


@dataclass(frozen=True)
class StencilTask:
    """A stencil, and the number of its applications.

    ``boundary`` is ``"periodic"``, ``"reflect"``, ``"mirror"``, ``"nearest"`` or a constant for
    each axis. The dtype is float32, float64, complex64 or complex128.
    """

    operation: ClassVar[str] = "stencil"

    dtype: str
    taps: Taps
    boundary: tuple[Boundary, ...]
    iterations: int

    @property
    def operations(self) -> int:
        """Floating-point operations of a sweep for each element."""
        return 2 * len(self.taps.weights)

    @property
    def reach(self) -> tuple[int, ...]:
        """How far a sweep reads around each element, along each axis."""
        return self.taps.radius


@dataclass(frozen=True)
class JacobiTask(StencilTask):
    """The equation of Jacobi's iteration, and the criteria for its end.

    ``dx`` is the grid spacing, ``tol`` the maximum residual relative to that of u = 0.
    """

    operation: ClassVar[str] = "jacobi"

    dx: float
    tol: float

    @classmethod
    def of(
        cls, dtype: str, dx: float, boundary: tuple[Boundary, ...], iterations: int, tol: float
    ) -> JacobiTask:
        """Return the task on a grid with as many axes as boundaries."""
        return cls(dtype, neighbours_mean(len(boundary)), boundary, iterations, dx, tol)

    @property
    def operations(self) -> int:
        """Floating-point operations of a sweep for each element."""
        return super().operations + 1

    @property
    def damping(self) -> float:
        """The change of u in a sweep divided by the residual."""
        return self.dx**2 / (2 * len(self.boundary))


@dataclass(frozen=True)
class SweepPlan(Bare):
    """Sweeps of an array on ``size`` ranks, with so many ``steps`` between two exchanges.

    ``source`` is the layout of the blocks before and after, ``tiles`` that during the sweeps.
    Jacobi's iteration adds an array with the layout ``added`` in each sweep, and has ``every``
    exchanges or more between two residuals.
    """

    source: Layout
    tiles: Layout
    task: StencilTask
    size: int
    steps: int = 1
    added: Layout | None = None
    every: int = 1

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return np.dtype(self.task.dtype).itemsize

    @property
    def arrays(self) -> int:
        """Number of arrays that a sweep reads or writes."""
        return 2 if self.added is None else 3

    @cached_property
    def halo(self) -> HaloPlan:
        """The exchange of ghost cells within the array, or around a periodic array."""
        tiles, taps = self.tiles, self.task.taps
        return plan_halo(
            tiles,
            self.task.dtype,
            tuple((self.steps * reach,) * 2 for reach in taps.radius),
            tuple(each if each == "periodic" else None for each in self.task.boundary),
            self.size,
            wanted=[index for index in tiles.indices() if prod(tiles.block_shape(index))],
        )

    @cached_property
    def into(self) -> RedistributePlan | None:
        """The redistribution from blocks to tiles; ``None`` if they are the same."""
        return self._move(self.source, self.tiles)

    @cached_property
    def back(self) -> RedistributePlan | None:
        """The redistribution from tiles to blocks."""
        return self._move(self.tiles, self.source)

    @cached_property
    def added_into(self) -> RedistributePlan | None:
        """The redistribution of the added array to tiles; ``None`` if it is in place."""
        return None if self.added is None else self._move(self.added, self.tiles)

    def _move(self, source: Layout, target: Layout) -> RedistributePlan | None:
        if source == target:
            return None
        return plan_redistribute(source, target, self.task.dtype, self.size)

    def pause(self, rounds: int) -> int:
        """Return the number of exchanges until the next residual, after so many."""
        return max(self.every, rounds // LEAST_SHARE)

    def tile(self, index: Index) -> Tile:
        """Return the place of a tile and its ghost cells."""
        task = self.task
        rows = zip(self.tiles.cuts, index, task.reach, task.boundary, strict=True)
        return Tile(
            tuple(
                Side(cuts[at], cuts[at + 1], cuts[-1], boundary == "periodic", reach, self.steps)
                for cuts, at, reach, boundary in rows
            )
        )

    def tiles_of(self, rank: int) -> dict[Index, Tile]:
        """Return the tiles of a rank that are not empty."""
        return {index: self.tile(index) for index in self.halo.target.owned(rank)}


def plan_sweeps(
    source: Layout,
    task: StencilTask,
    size: int,
    machine: Machine,
    *,
    added: Layout | None = None,
    room: float | None = None,
) -> SweepPlan:
    """Plan sweeps of an array; see :class:`SweepPlan`. The plan is the same on every rank.

    Tiles are the blocks, or one even tile for each rank. With s sweeps between exchanges, ghost
    cells of s times the radius are exchanged and computed by several ranks: messages and waiting
    are divided by s, and work grows a little. ``room`` are the bytes of free memory on a rank's
    device.
    """
    most = task.iterations if added is None else task.iterations // LEAST_ROUNDS
    tilings = [source] if prod(source.grid) <= MOST_BLOCKS else []
    even = _even(source, task.taps, size)
    if even != source and (task.iterations > 1 or not tilings):
        tilings.append(even)
    plans = [
        _changed(first, "into", "back", steps=steps)
        for first in (SweepPlan(source, tiling, task, size, added=added) for tiling in tilings)
        for steps in _steps(first.tiles, task.taps, most)
    ]
    fitting = [plan for plan in plans if room is None or peak(plan) <= room]
    if fitting:
        plan = min(fitting, key=lambda plan: _seconds(plan, task.iterations, machine))
    else:
        plan = min(plans, key=peak)
    seconds = _seconds(plan, plan.steps, machine)
    if added is None or size == 1 or not seconds:
        return plan
    every = ceil(machine.latency / (CHECK_SHARE * seconds))
    # the end is noticed two checks late
    rounds = -(-task.iterations // plan.steps)
    every = max(1, min(every, rounds // 10))
    return _changed(plan, "into", "back", "halo", every=every)


def _changed(plan: SweepPlan, *alike: str, **changes: Any) -> SweepPlan:
    """Return the plan with other steps or checks, and what is alike of it."""
    other = replace(plan, **changes)
    vars(other).update({name: getattr(plan, name) for name in alike})
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


def cost(plan: SweepPlan, machine: Machine) -> float:
    """Predict the seconds of all sweeps, with redistributions and residuals."""
    seconds = _seconds(plan, plan.task.iterations, machine)
    if plan.added is not None and plan.size > 1:
        checks = 2 + plan.task.iterations // (plan.every * plan.steps)
        seconds += checks * machine.latency
    return seconds + (0.0 if plan.added_into is None else move_cost(plan.added_into, machine))


def _seconds(plan: SweepPlan, iterations: int, machine: Machine) -> float:
    """Predict the seconds of a number of sweeps."""
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
    nbytes = swept * plan.arrays * plan.itemsize / (REUSE if plan.steps > 1 else 1.0)
    calls = (plan.steps + 4) * max(1, len(tiles)) * CALL_SECONDS
    seconds = rounds * (ring + nbytes / machine.memory_bandwidth + calls)
    moves = [move for move in (plan.into, plan.back) if move is not None]
    inside = 4 * plan.tiles.share(busiest, plan.itemsize) / machine.memory_bandwidth
    return seconds + inside + sum(move_cost(move, machine) for move in moves)


def peak(plan: SweepPlan) -> int:
    """Return the most bytes on a rank: blocks before and after, tiles and messages."""
    most = 0
    for rank in range(plan.size):
        stored = sum(prod(tile.shape) for tile in plan.tiles_of(rank).values())
        blocks = plan.source.share(rank, plan.itemsize)
        moved = 0 if plan.into is None else plan.tiles.share(rank, plan.itemsize)
        most = max(most, plan.arrays * (stored * plan.itemsize + blocks) + moved)
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
