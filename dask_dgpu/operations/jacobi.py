"""Jacobi's iteration; the detail of a run is its outcome."""

from __future__ import annotations

from operator import attrgetter

from dask_dgpu.algorithms.jacobi.plan import JacobiPlan, cost, peak, plan_jacobi
from dask_dgpu.algorithms.jacobi.rank import Outcome, jacobi_rank
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import Device
from dask_dgpu.operations.operation import Blocks, Cost, Operation, Progress, Request
from dask_dgpu.operations.stencil import describe, moved_bytes
from graph_opt.model.cost import Machine


def _plan(request: Request) -> JacobiPlan:
    (u0, rhs), limits = request.inputs, (request.size, request.machine)
    return plan_jacobi(u0.layout, rhs.layout, request.task, *limits, room=request.room)


def _run(
    plan: JacobiPlan,
    comm: Comm,
    device: Device,
    u0: Blocks,
    rhs: Blocks,
    *,
    progress: Progress,
) -> tuple[Blocks, Outcome]:
    return jacobi_rank(plan, comm, device, u0, rhs, progress)


def _cost(plan: JacobiPlan, machine: Machine) -> Cost:
    sweeps, task = plan.sweeps, plan.task
    return Cost(
        seconds=cost(plan, machine),
        moved_bytes=moved_bytes(sweeps, task.max_iterations),
        peak_bytes=peak(plan),
        text=f"{describe(sweeps)}, a residual every {plan.every * sweeps.steps}",
        details=(("steps", sweeps.steps), ("tiles", sweeps.tiles.grid), ("every", plan.every)),
    )


JACOBI = Operation(
    plan=_plan,
    layout=attrgetter("sweeps.source"),
    run=_run,
    cost=_cost,
    repeats=lambda plan: False,  # the host reads residuals
)
