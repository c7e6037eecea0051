"""Ghost cells: every block extended by parts of its neighbours, or of a boundary."""

from __future__ import annotations

from operator import attrgetter

import numpy as np

from dask_dgpu.algorithms.halo.plan import HaloPlan, cost, plan_halo, traffic, workspace
from dask_dgpu.algorithms.halo.rank import halo_rank
from dask_dgpu.operations.operation import Cost, Operation, Request
from graph_opt.model.cost import Machine
from graph_opt.model.layout import counted


def _plan(request: Request) -> HaloPlan:
    (source,) = request.inputs
    depth, boundary = request.task
    return plan_halo(
        source.layout, source.dtype, depth, boundary, request.size, wanted=request.result.blocks
    )


def _cost(plan: HaloPlan, machine: Machine) -> Cost:
    moved = traffic(plan)
    received = moved.sum(axis=0).tolist()
    messages = int(np.count_nonzero(moved))
    before, after = (each.shares(plan.size, plan.itemsize) for each in (plan.layout, plan.target))
    return Cost(
        seconds=cost(plan, machine),
        moved_bytes=max(received),
        peak_bytes=int((before + after).max()) + workspace(plan),
        text=f"ghost cells in {counted(messages, 'message')}",
        details=(("messages", messages), ("total_bytes", sum(received))),
    )


OVERLAP = Operation(plan=_plan, layout=attrgetter("target"), run=halo_rank, cost=_cost)
