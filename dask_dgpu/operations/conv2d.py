"""Convolutions of images."""

from __future__ import annotations

from functools import partial
from itertools import product as cartesian
from operator import attrgetter
from typing import cast

import numpy as np

from dask_dgpu.algorithms.conv2d.plan import (
    Conv2dPlan,
    cost,
    plan_conv2d,
    tilings,
    traffic,
    workspace,
)
from dask_dgpu.algorithms.conv2d.rank import conv2d_rank
from dask_dgpu.algorithms.redistribute.plan import buffer_bytes
from dask_dgpu.operations.operation import Cost, Operation, Request, Value, place
from graph_opt.model.cost import Machine
from graph_opt.model.layout import Cuts, Layout, counted, dtype_named
from graph_opt.model.window import Convolution

EVEN = 1.25
"""Blocks are not divided if the busiest rank has at most this multiple of an even share."""


def _plan(request: Request) -> Conv2dPlan:
    """Take blocks as tiles if these are even and fit, else the quickest of several tilings."""
    wanted = set(request.result.indices())
    blocks, *parts = tilings(request.result.cuts, wanted, request.size)
    plan = _tiled(request, blocks)
    shares, plans = plan.tiles.shares(request.size, 1), [plan]
    if shares.max() * request.size > EVEN * shares.sum():
        plans += [_tiled(request, cuts) for cuts in parts]
    best = min(plans, key=partial(cost, machine=request.machine))
    if not request.excess(_peak(best)):
        return best
    plans += [_tiled(request, cuts, roomy=False) for cuts in (blocks, *parts)]
    return min(plans, key=lambda each: (request.excess(_peak(each)), cost(each, request.machine)))


def _tiled(request: Request, cuts: tuple[Cuts, ...], *, roomy: bool = True) -> Conv2dPlan:
    """Plan a convolution in tiles of these cuts, each on the rank with most of its window.

    Buffers are as small as possible unless the memory is ``roomy``.
    """
    x, weight, *bias = (given.layout for given in request.inputs)
    convolution, result = cast(Convolution, request.task), request.result
    near = (cuts[0], (0, x.shape[1]), *convolution.source_cuts(cuts, x.shape))
    kept, blocks = set(result.indices()), tuple(map(_blocks_of, cuts, result.cuts))
    tiles = tuple(
        index
        for index in cartesian(*map(range, Value(cuts, result.dtype).grid))
        if tuple(along[at] for along, at in zip(blocks, index, strict=True)) in kept
    )
    owners = place(x, Value(near, result.dtype, tiles), request.size).owners
    tiled = Layout(cuts, owners)
    target = tiled if cuts == result.cuts else place(tiled, result, request.size)
    share = int(target.shares(request.size, dtype_named(result.dtype).itemsize).max())
    return plan_conv2d(
        convolution,
        x,
        weight,
        bias[0] if bias else None,
        tiled,
        target,
        result.dtype,
        request.size,
        limit=buffer_bytes(share, share if roomy else 0, request.machine),
    )


def _blocks_of(tiles: Cuts, blocks: Cuts) -> list[int]:
    """Return the block that each tile of an axis is in; either may be empty."""
    gathered, block = [], 0
    for stop in tiles[1:]:
        gathered.append(block)
        block += stop == blocks[block + 1]
    return gathered


def _cost(plan: Conv2dPlan, machine: Machine) -> Cost:
    received = traffic(plan).sum(axis=0).tolist()
    strategy, tiles = _strategy(plan), sum(owner >= 0 for owner in plan.tiles.owners)
    return Cost(
        seconds=cost(plan, machine),
        moved_bytes=max(received),
        peak_bytes=_peak(plan),
        text=f"convolved {strategy} in {counted(tiles, 'tile')}",
        details=(("strategy", strategy), ("tiles", tiles), ("total_bytes", sum(received))),
    )


def _peak(plan: Conv2dPlan) -> int:
    layouts = (*(gather.layout for gather in plan.gathers), plan.result)
    shares = [layout.shares(plan.size, plan.windows.itemsize) for layout in layouts]
    return int(np.sum(shares, axis=0).max()) + workspace(plan)


def _flops(plan: Conv2dPlan) -> float:
    each = plan.convolution.operations(plan.windows.layout.shape[1])
    return int(plan.tiles.shares(plan.size, each).sum())


def _strategy(plan: Conv2dPlan) -> str:
    """Name the axes along which the work is divided among ranks."""
    pairs = zip(plan.tiles.indices(), plan.tiles.owners, strict=True)
    busy = [index for index, owner in pairs if owner >= 0]
    over, down = len({index[0] for index in busy}) > 1, len({index[2:] for index in busy}) > 1
    if over and down:
        return "by images and space"
    if over or down:
        return "by images" if over else "by space"
    return "on one rank"


CONV2D = Operation(
    plan=_plan, layout=attrgetter("result"), run=conv2d_rank, cost=_cost, flops=_flops
)
