"""The plan of a convolution: tiles, the windows under them, and the cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dask_dgpu.algorithms.cells import Ints
from dask_dgpu.algorithms.halo import plan as halo
from dask_dgpu.algorithms.halo.gather import GatherPlan, whole_on
from dask_dgpu.algorithms.redistribute import plan as redistribute
from dask_dgpu.algorithms.redistribute.plan import RedistributePlan, plan_redistribute
from graph_opt.model.cost import TALL, Machine
from graph_opt.model.layout import Bare, Cuts, Index, Layout, even_spans
from graph_opt.model.window import Convolution, Window

Slices = tuple[slice, ...]


@dataclass(frozen=True)
class Conv2dPlan(Bare):
    """The plan of one convolution on the ranks of a communicator.

    ``windows`` are those under tiles that are assembled; other tiles have no owner here. ``weight``
    and ``bias`` are copies for the ranks. ``tiles`` are those of the result, and the rank that
    computes each. ``merge`` is from tiles to blocks; ``None`` if each tile is a block.
    """

    convolution: Convolution
    windows: GatherPlan
    weight: GatherPlan
    bias: GatherPlan | None
    tiles: Layout
    merge: RedistributePlan | None

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.windows.size

    @property
    def result(self) -> Layout:
        """The layout of the result."""
        return self.tiles if self.merge is None else self.merge.target

    @property
    def gathers(self) -> tuple[GatherPlan, ...]:
        """What is assembled from parts: windows, weights and bias."""
        halos = self.windows, self.weight, self.bias
        return tuple(halo for halo in halos if halo is not None)

    @cached_property
    def direct(self) -> dict[Index, tuple[Index, Slices]]:
        """The tiles whose windows need no copy."""
        return self.windows.within_blocks(self.tiles)

    def parameters(self, tile: Index) -> Convolution:
        """Return the parameters for a tile: an assembled window has its zeros already."""
        rows, columns = (
            windows[at] for windows, at in zip(self.windows.windows[2:], tile[2:], strict=True)
        )
        if tile in self.direct:
            return self.convolution.padded(rows, columns)
        return self.convolution.padded(Window(0, 0), Window(0, 0))


def plan_conv2d(
    convolution: Convolution,
    x: Layout,
    weight: Layout,
    bias: Layout | None,
    tiles: Layout,
    result: Layout,
    dtype: str,
    size: int,
    *,
    limit: int = 64 << 20,
) -> Conv2dPlan:
    """Plan a convolution; the plan is the same on every rank.

    ``tiles`` divide the blocks of ``result``. ``limit`` is that of a redistribution. A ValueError
    says that a block that is read has no owner.
    """
    under = convolution.windows(tiles.cuts, x.shape)
    windows = GatherPlan(x, dtype, size, windows=under, owners=(-1,) * len(tiles.owners))
    direct = windows.within_blocks(tiles)
    owners = tuple(
        -1 if index in direct else owner
        for index, owner in zip(tiles.indices(), tiles.owners, strict=True)
    )
    busy = [rank in tiles.owners for rank in range(size)]
    merge = None
    if tiles != result:
        merge = plan_redistribute(tiles, result, dtype, size, limit=limit)
    plan = Conv2dPlan(
        convolution,
        replace(windows, owners=owners),
        whole_on(weight, busy, dtype),
        None if bias is None else whole_on(bias, busy, dtype),
        tiles,
        merge,
    )
    for gather in plan.gathers:
        gather.cells.check_sources(gather.layout.grid)
    return plan


def tilings(cuts: tuple[Cuts, ...], wanted: set[Index], size: int) -> Iterator[tuple[Cuts, ...]]:
    """Yield ways to cut the result into tiles for some ranks: its blocks, and parts of them.

    ``wanted`` are the blocks to compute. They are divided by images, by rows, and by both.
    """
    images, rows = (_extent(cuts, wanted, axis) for axis in (0, 2))
    few = min(max(1, images[1] - images[0]), size)
    ways = (1, 1), (size, 1), (1, size), (few, -(-size // few))
    tilings = (
        (_divided(cuts[0], images, over), cuts[1], _divided(cuts[2], rows, down), cuts[3])
        for over, down in ways
    )
    yield from dict.fromkeys(tilings)


def _extent(cuts: tuple[Cuts, ...], wanted: set[Index], axis: int) -> tuple[int, int]:
    chunks = [index[axis] for index in wanted] or [0]
    return cuts[axis][min(chunks)], cuts[axis][max(chunks) + 1]


def _divided(cuts: Cuts, extent: tuple[int, int], parts: int) -> Cuts:
    """Return the cuts of an axis and more, which divide a part of it evenly."""
    more = {stop for _, stop in even_spans(*extent, parts)} - set(cuts) if parts > 1 else ()
    return (*sorted((*cuts, *more)),)


def traffic(plan: Conv2dPlan) -> Ints:
    """Return the bytes that each rank sends to each: ``traffic(plan)[sender, receiver]``."""
    moved = sum((halo.traffic(gather) for gather in plan.gathers), np.zeros((), np.int64))
    return moved if plan.merge is None else moved + redistribute.traffic(plan.merge)


def workspace(plan: Conv2dPlan) -> int:
    """Return the most bytes of a rank beyond its inputs and its result.

    These are assembled windows and weights, tiles, messages, and the copies of a library: of the
    largest window and the largest tile.
    """
    itemsize, most = plan.windows.itemsize, sum(halo.workspace(gather) for gather in plan.gathers)
    kept = np.sum([gather.target.shares(plan.size, itemsize) for gather in plan.gathers], axis=0)
    if plan.merge is not None:
        kept += plan.tiles.shares(plan.size, itemsize)
        most += redistribute.workspace(plan.merge)
    lengths = (max((each.length for each in along), default=0) for along in plan.windows.windows)
    largest = int(np.prod([*lengths], dtype=np.int64))
    tile = int(np.prod([max(along, default=0) for along in plan.tiles.lengths], dtype=np.int64))
    return most + int(kept.max()) + (largest + tile) * itemsize


def cost(plan: Conv2dPlan, machine: Machine) -> float:
    """Predict the seconds of a plan: transfers at once, then the work of the busiest rank."""
    windows, at_once = plan.windows, replace(machine, latency=0.0)
    each = plan.convolution.operations(windows.layout.shape[1])
    most = int(plan.tiles.shares(plan.size, each).max())
    seconds = most / machine.product_rate((TALL, TALL, TALL), windows.dtype)
    seconds += sum(halo.cost(gather, at_once) for gather in plan.gathers)
    if any(halo.traffic(gather).any() for gather in plan.gathers):
        seconds += machine.latency
    return seconds + (0.0 if plan.merge is None else redistribute.cost(plan.merge, machine))
