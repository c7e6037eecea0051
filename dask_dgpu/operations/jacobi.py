"""Jacobi's iteration; the detail of a run is its outcome."""

from __future__ import annotations

from operator import attrgetter

from dask_dgpu.algorithms.jacobi.plan import JacobiPlan, cost, peak, plan_jacobi
from dask_dgpu.algorithms.jacobi.rank import jacobi_rank
from dask_dgpu.operations.operation import Cost, Operation, Request
from dask_dgpu.operations.stencil import describe, moved_bytes
from graph_opt.model.cost import Machine


def _plan(request: Request) -> JacobiPlan:
    (u0, rhs), limits = request.inputs, (request.size, request.machine)
    return plan_jacobi(u0.layout, rhs.layout, request.task, *limits, room=request.room)


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
    run=jacobi_rank,
    cost=_cost,
    repeats=lambda plan: False,  # the host reads residuals
)
