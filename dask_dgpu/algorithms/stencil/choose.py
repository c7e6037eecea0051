"""Choosing the tiles, and the number of sweeps between exchanges, by their cost."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from dask_dgpu.algorithms.halo import Boundary
from dask_dgpu.algorithms.halo import cost as exchange_cost
from dask_dgpu.algorithms.halo import workspace as message_bytes
from dask_dgpu.algorithms.redistribute import cost as move_cost
from dask_dgpu.algorithms.redistribute import workspace as move_bytes
from dask_dgpu.algorithms.stencil.plan import SweepPlan, even_tiles, meshes
from dask_dgpu.kernels.stencil import Taps
from graph_opt.model.cost import Machine
from graph_opt.model.layout import Layout

STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Candidate numbers of sweeps between exchanges."""

REUSE = 2.0
"""Speed-up over memory bandwidth if several sweeps work in the cache."""

CALL_SECONDS = 2e-5
"""Time of the host to start a sweep of a tile, or an exchange."""

MOST_BLOCKS = 1 << 14
"""Layouts with more blocks are always redistributed."""


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
    tilings = _tilings(source, taps, iterations, size)
    plans = [
        SweepPlan(source, tiles, dtype, taps, boundary, steps, size)
        for tiles in tilings
        for steps in _steps(tiles, taps, min(iterations, most_steps))
    ]
    costs = {id(plan): cost(plan, iterations, machine, arrays=arrays) for plan in plans}
    fitting = [plan for plan in plans if room is None or peak(plan, arrays=arrays) <= room]
    if not fitting:
        return min(plans, key=lambda plan: peak(plan, arrays=arrays))
    return min(fitting, key=lambda plan: costs[id(plan)])


def _tilings(source: Layout, taps: Taps, iterations: int, size: int) -> list[Layout]:
    """Return the candidate tiles: the blocks, and one even tile for each rank."""
    tilings = [source] if prod(source.grid) <= MOST_BLOCKS else []
    even = _even(source, taps, size)
    if even != source and (iterations > 1 or not tilings):
        tilings.append(even)
    return tilings


def _steps(tiles: Layout, taps: Taps, most: int) -> Iterator[int]:
    """Yield candidate numbers of sweeps: ghost cells must not outgrow tiles."""
    longest, reach = max(_typical(tiles)), max(taps.radius)
    for steps in STEPS:
        if steps == 1 or (steps <= most and 2 * steps * reach <= longest):
            yield steps


def _typical(tiles: Layout) -> tuple[int, ...]:
    """Return the lengths of an average tile."""
    return tuple(
        -(-length // max(1, blocks)) for length, blocks in zip(tiles.shape, tiles.grid, strict=True)
    )


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
    swept = 0
    for left in range(plan.steps):
        margins = tuple(left * reach for reach in plan.taps.radius)
        for tile in tiles:
            swept += prod(along.stop - along.start for along in tile.region(margins))
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
