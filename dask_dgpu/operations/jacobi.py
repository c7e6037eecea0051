"""Jacobi's iteration: what it ends up with, and a block more along the first axis, its report."""

from __future__ import annotations

from math import prod

import numpy as np

from dask_dgpu.algorithms.jacobi import JacobiPlan, cost, jacobi_rank, peak, plan_jacobi
from dask_dgpu.algorithms.jacobi.report import beside, written
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import Device
from dask_dgpu.operations.operation import Cost, Operation, Progress, Request
from dask_dgpu.operations.stencil import describe, moved_bytes
from dask_dgpu.operations.value import Blocks
from graph_opt.model.cost import Machine
from graph_opt.model.layout import Layout, cuts_of


def _plan(request: Request) -> JacobiPlan:
    (u0, rhs), limits = request.inputs, (request.size, request.machine)
    return plan_jacobi(u0.layout, rhs.layout, request.task, *limits, room=request.room)


def _layout(plan: JacobiPlan) -> Layout:
    """Return the layout of u, and of the report on rank 0."""
    source = plan.sweeps.source
    chunks = tuple(tuple(np.diff(cuts).tolist()) for cuts in source.cuts)
    cuts = tuple(map(cuts_of, beside(chunks, plan.task.dtype)))
    owners = (*source.owners, 0, *(-1,) * (prod(source.grid[1:]) - 1))
    return Layout(cuts, owners)


def _run(
    plan: JacobiPlan,
    comm: Comm,
    device: Device,
    u0: Blocks,
    rhs: Blocks,
    *,
    progress: Progress,
) -> Blocks:
    made, outcome = jacobi_rank(plan, comm, device, u0, rhs, progress)
    if comm.rank == 0:
        index = (plan.sweeps.source.grid[0], *(0,) * (plan.task.ndim - 1))
        shape = _layout(plan).block_shape(index)
        with device.computing():
            made[index] = device.to_device(written(outcome, shape, plan.task.dtype))
        device.join()
    return made


def _cost(plan: JacobiPlan, machine: Machine) -> Cost:
    sweeps, task = plan.sweeps, plan.task
    return Cost(
        seconds=cost(plan, machine),
        moved_bytes=moved_bytes(sweeps, task.max_iterations),
        peak_bytes=peak(plan),
        text=f"{describe(sweeps)}, a residual every {plan.every * sweeps.steps}",
        details=(("steps", sweeps.steps), ("tiles", sweeps.tiles.grid), ("every", plan.every)),
    )


JACOBI = Operation(plan=_plan, layout=_layout, run=_run, cost=_cost)
