"""Rechunks, of an array or of its transpose, and the ranks of their blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from operator import attrgetter
from typing import Any

import numpy as np

from dask_dgpu.algorithms.redistribute import (
    RedistributePlan,
    buffer_bytes,
    cost,
    plan_redistribute,
    redistribute_rank,
    traffic,
    workspace,
)
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import Device
from dask_dgpu.operations.operation import Cost, Operation, Progress, Request
from dask_dgpu.operations.value import Blocks, Value
from graph_opt.model.cost import Machine
from graph_opt.model.layout import Index, Layout, common_lengths, dealt, spread
from graph_opt.pieces.rechunk import RULE

Axes = tuple[int, ...]
Elements = np.ndarray[Any, np.dtype[np.float64]]

MOST_PRODUCTS = 1 << 28
"""Blocks are dealt out in order if finding out who has most of each takes more."""


@dataclass(frozen=True)
class RechunkPlan:
    """A plan, and the order in which the axes of its input are taken, ``None`` for their own."""

    plan: RedistributePlan
    axes: Axes | None


def _plan(request: Request) -> RechunkPlan:
    (given,) = request.inputs
    source = given if request.task is None else given.transposed(request.task)
    target = place(source.layout, request.result, request.size)
    dtype = request.result.dtype
    share = max(target.share(rank, np.dtype(dtype).itemsize) for rank in range(request.size))
    limit = buffer_bytes(share, share, request.machine)
    plan = plan_redistribute(source.layout, target, dtype, request.size, limit=limit)
    return RechunkPlan(plan, request.task)


def _run(
    plan: RechunkPlan, comm: Comm, device: Device, blocks: Blocks, *, progress: Progress
) -> Blocks:
    axes = plan.axes
    if axes is not None:
        blocks = {
            tuple(index[axis] for axis in axes): block.transpose(axes)
            for index, block in blocks.items()
        }
    return redistribute_rank(plan.plan, comm, device, blocks, progress=progress)


def _cost(rechunk: RechunkPlan, machine: Machine) -> Cost:
    plan = rechunk.plan
    received = traffic(plan).sum(axis=0).tolist()
    shares = (
        plan.source.share(rank, plan.itemsize) + plan.target.share(rank, plan.itemsize)
        for rank in range(plan.size)
    )
    rounds = "round" if plan.rounds == 1 else "rounds"
    return Cost(
        seconds=cost(plan, machine),
        moved_bytes=max(received),
        peak_bytes=max(shares) + workspace(plan),
        text=f"redistributed in {plan.rounds} {rounds}",
        details=(("rounds", plan.rounds), ("total_bytes", sum(received))),
    )


def place(source: Layout, result: Value, size: int) -> Layout:
    """Give every rank about its share of a result, most of it from its own blocks.

    No rank has more elements than the fullest would if contiguous blocks were dealt out evenly, or
    little more if block sizes differ much. Blocks choose in the order of their largest part on one
    rank. Each takes the rank with most of it that still has room; among equals the one that it
    would be dealt to.
    """
    wanted = list(result.indices())
    sizes = [prod(result.block_shape(index)) for index in wanted]
    owners: Sequence[int] = dealt(len(wanted), size, sizes)
    if _products(source, result) * size <= MOST_PRODUCTS:
        owners = _settled(_held(source, result, wanted, size), sizes, owners)
    return result.placed(owners).layout


def _products(source: Layout, result: Value) -> int:
    """Multiplications for the elements of every result block that one rank has."""
    grid, total = list(source.grid), 0
    for axis, blocks in enumerate(result.grid):
        total += prod(grid) * blocks
        grid[axis] = blocks
    return total


def _held(source: Layout, result: Value, wanted: list[Index], size: int) -> Elements:
    """Return the elements of each wanted block that each rank has, (blocks, ranks)."""
    owners = np.array(source.owners, np.int64).reshape(source.grid)
    common = [common_lengths(*cuts).T for cuts in zip(source.cuts, result.cuts, strict=True)]
    held = np.empty((len(wanted), size))
    grid = result.grid
    places = [int(np.ravel_multi_index(index, grid)) for index in wanted]
    for rank in range(size):
        held[:, rank] = spread((owners == rank).astype(float), common).reshape(-1)[places]
    return held


def _settled(held: Elements, sizes: list[int], even: Sequence[int]) -> Sequence[int]:
    """Let each block take the rank with most of it that still has room, else that of ``even``."""
    if (held == held[:, :1]).all():
        return even
    load = np.zeros(held.shape[1], np.int64)
    owners = list(even)
    np.add.at(load, owners, sizes)
    room = int(load.max(initial=0))
    load[:] = 0
    for block in np.argsort(-held.max(axis=1, initial=0), kind="stable").tolist():
        fits = load + sizes[block] <= room
        if not fits.any():
            fits = load == load.min()
        mine = np.where(fits, held[block], -1)
        best = int(mine.argmax())
        owners[block] = even[block] if mine[even[block]] == mine[best] else best
        load[owners[block]] += sizes[block]
    return owners


RECHUNK = Operation(plan=_plan, layout=attrgetter("plan.target"), run=_run, cost=_cost, rule=RULE)
