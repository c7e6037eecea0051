"""Stencils, applied once or again and again, and Jacobi's iteration, a stencil with an end."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter

from dask_dgpu.algorithms.halo.plan import traffic
from dask_dgpu.algorithms.redistribute import plan as redistribute
from dask_dgpu.algorithms.stencil.jacobi import jacobi_rank
from dask_dgpu.algorithms.stencil.plan import SweepPlan, cost, peak, plan_sweeps
from dask_dgpu.algorithms.stencil.rank import stencil_rank
from dask_dgpu.operations.operation import Cost, Operation, Request
from graph_opt.model.cost import Machine
from graph_opt.model.layout import counted


def _plan(request: Request) -> SweepPlan:
    source, *others = (each.layout for each in request.inputs)
    added = others[0] if others else None
    limits = request.size, request.machine
    return plan_sweeps(source, request.task, *limits, added=added, room=request.room)


def _cost(plan: SweepPlan, machine: Machine) -> Cost:
    received = -(-plan.task.iterations // plan.steps) * traffic(plan.halo).sum(axis=0)
    for move in (plan.into, plan.added_into, plan.back):
        if move is not None:
            received += redistribute.traffic(move).sum(axis=0)
    tiles = "blocks" if plan.into is None else f"tiles {plan.tiles.grid}"
    text = f"swept in {tiles}, {counted(plan.steps, 'sweep')} an exchange"
    details: tuple[tuple[str, object], ...] = ("steps", plan.steps), ("tiles", plan.tiles.grid)
    if plan.added is not None:
        text += f", a residual every {plan.every * plan.steps}"
        details += (("every", plan.every),)
    return Cost(
        seconds=cost(plan, machine),
        moved_bytes=int(received.max()),
        peak_bytes=peak(plan),
        text=text,
        details=details,
    )


def _flops(plan: SweepPlan) -> float:
    elements = int(plan.source.shares(plan.size, 1).sum())
    return plan.task.operations * elements * plan.task.iterations


STENCIL = Operation(
    plan=_plan, layout=attrgetter("source"), run=stencil_rank, cost=_cost, flops=_flops
)
JACOBI = replace(
    STENCIL,
    run=jacobi_rank,  # with its outcome, the detail of the run
    flops=None,
    repeats=lambda plan: False,  # the host reads residuals
)
