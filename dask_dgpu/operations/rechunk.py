"""Rechunks, of an array or of its transpose."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from dask_dgpu.algorithms.redistribute.plan import (
    LEAST,
    RedistributePlan,
    buffer_bytes,
    cost,
    plan_redistribute,
    traffic,
    workspace,
)
from dask_dgpu.algorithms.redistribute.rank import redistribute_rank
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import Device
from dask_dgpu.operations.operation import Blocks, Cost, Operation, Progress, Request, place
from graph_opt.model.cost import Machine
from graph_opt.model.layout import counted

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
    dtype, size, machine = request.result.dtype, request.size, request.machine
    share = int(target.shares(size, np.dtype(dtype).itemsize).max())

    def planned(spare: int) -> RedistributePlan:
        limit = buffer_bytes(share, spare, machine)
        return plan_redistribute(source.layout, target, dtype, size, limit=limit)

    plan, room = planned(share), request.room
    if room is not None and _held(plan) + workspace(plan) > room:
        plan = planned(max(0, int(room) - _held(plan) - LEAST))
    return RechunkPlan(plan, request.task)


def _held(plan: RedistributePlan) -> int:
    """Return the most bytes of a rank in blocks of source and target."""
    source, target = (each.shares(plan.size, plan.itemsize) for each in (plan.source, plan.target))
    return int((source + target).max())


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
    return Cost(
        seconds=cost(plan, machine),
        moved_bytes=max(received),
        peak_bytes=_held(plan) + workspace(plan),
        text=f"redistributed in {counted(plan.rounds, 'round')}",
        details=(("rounds", plan.rounds), ("total_bytes", sum(received))),
    )


RECHUNK = Operation(
    plan=_plan,
    layout=attrgetter("plan.target"),
    run=_run,
    cost=_cost,
)
