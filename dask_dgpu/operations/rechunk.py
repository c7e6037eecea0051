"""Rechunks, of an array or of its transpose."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from dask_dgpu.algorithms.redistribute.plan import (
    RedistributePlan,
    buffer_bytes,
    cost,
    in_levels,
    plan_redistribute,
    traffic,
    units_for,
    workspace,
)
from dask_dgpu.algorithms.redistribute.rank import redistribute_rank
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import Device
from dask_dgpu.operations.operation import Cost, Operation, Progress, Request
from dask_dgpu.operations.value import Blocks, place
from graph_opt.model.cost import Machine
from graph_opt.model.layout import counted
from graph_opt.pieces.rechunk import RULE

Axes = tuple[int, ...]


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
    units = units_for(request.size, request.machine)
    plan = plan_redistribute(source.layout, target, dtype, request.size, limit=limit, units=units)
    return RechunkPlan(in_levels(plan, request.machine), request.task)


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
    return Cost(
        seconds=cost(plan, machine),
        moved_bytes=max(received),
        peak_bytes=max(shares) + workspace(plan),
        text=f"redistributed in {counted(plan.rounds, 'round')}",
        details=(("rounds", plan.rounds), ("total_bytes", sum(received))),
    )


RECHUNK = Operation(plan=_plan, layout=attrgetter("plan.target"), run=_run, cost=_cost, rule=RULE)
