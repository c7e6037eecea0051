"""Stencils, applied once or again and again."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import cast

from dask_dgpu.algorithms.halo.plan import traffic
from dask_dgpu.algorithms.stencil.plan import StencilTask, SweepPlan, cost, peak, plan_sweeps
from dask_dgpu.algorithms.stencil.rank import stencil_rank
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import Device
from dask_dgpu.operations.operation import Blocks, Cost, Operation, Progress, Request
from graph_opt.model.cost import Machine
from graph_opt.model.layout import counted


@dataclass(frozen=True)
class Sweeps:
    """A plan, and how many sweeps there are."""

    plan: SweepPlan
    iterations: int


def _plan(request: Request) -> Sweeps:
    (source,), task = request.inputs, cast(StencilTask, request.task)
    plan = plan_sweeps(
        source.layout,
        task.dtype,
        task.taps,
        task.boundary,
        task.iterations,
        request.size,
        request.machine,
        room=request.room,
    )
    return Sweeps(plan, task.iterations)


def _run(
    sweeps: Sweeps, comm: Comm, device: Device, blocks: Blocks, *, progress: Progress
) -> Blocks:
    return stencil_rank(sweeps.plan, sweeps.iterations, comm, device, blocks, progress)


def _cost(sweeps: Sweeps, machine: Machine) -> Cost:
    plan = sweeps.plan
    return Cost(
        seconds=cost(plan, sweeps.iterations, machine),
        moved_bytes=moved_bytes(plan, sweeps.iterations),
        peak_bytes=peak(plan),
        text=describe(plan),
        details=(("steps", plan.steps), ("tiles", plan.tiles.grid)),
    )


def _flops(sweeps: Sweeps) -> float:
    plan = sweeps.plan
    elements = int(plan.source.shares(plan.size, 1).sum())
    return 2 * len(plan.taps.weights) * elements * sweeps.iterations


def moved_bytes(plan: SweepPlan, iterations: int) -> int:
    """Return the bytes that the busiest rank receives in all exchanges."""
    received = int(traffic(plan.halo).sum(axis=0).max())
    return received * -(-iterations // plan.steps)


def describe(plan: SweepPlan) -> str:
    """Return a plan in a few words."""
    tiles = "blocks" if plan.into is None else f"tiles {plan.tiles.grid}"
    return f"swept in {tiles}, {counted(plan.steps, 'sweep')} an exchange"


STENCIL = Operation(
    plan=_plan, layout=attrgetter("plan.source"), run=_run, cost=_cost, flops=_flops
)
