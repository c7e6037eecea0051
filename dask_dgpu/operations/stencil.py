"""Stencils, applied once or again and again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dask_dgpu.algorithms.halo import traffic
from dask_dgpu.algorithms.stencil import (
    StencilTask,
    SweepPlan,
    cost,
    peak,
    plan_sweeps,
    stencil_rank,
)
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import Device
from dask_dgpu.operations.operation import Cost, Operation, Report
from dask_dgpu.operations.value import Blocks, Placed, Value
from graph_opt.model.cost import Machine
from graph_opt.model.layout import Layout


@dataclass(frozen=True)
class Sweeps:
    """A plan, and how many sweeps there are."""

    plan: SweepPlan
    iterations: int


def _plan(
    inputs: Sequence[Placed],
    result: Value,
    task: StencilTask,
    size: int,
    machine: Machine,
    room: float | None,
) -> Sweeps:
    (source,) = inputs
    plan = plan_sweeps(
        source.layout,
        task.dtype,
        task.taps,
        task.boundary,
        task.iterations,
        size,
        machine,
        room=room,
    )
    return Sweeps(plan, task.iterations)


def _layout(sweeps: Sweeps) -> Layout:
    return sweeps.plan.source


def _run(
    plan: Sweeps, comm: Comm, device: Device, inputs: Sequence[Blocks], report: Report
) -> Blocks:
    (blocks,) = inputs
    return stencil_rank(plan.plan, plan.iterations, comm, device, blocks, report)


def _cost(sweeps: Sweeps, machine: Machine) -> Cost:
    plan = sweeps.plan
    return Cost(
        seconds=cost(plan, sweeps.iterations, machine),
        moved_bytes=moved_bytes(plan, sweeps.iterations),
        peak_bytes=peak(plan),
        text=describe(plan),
        details=(("steps", plan.steps), ("tiles", plan.tiles.grid)),
    )


def moved_bytes(plan: SweepPlan, iterations: int) -> int:
    """Return the bytes that the busiest rank receives in all exchanges."""
    received = max(map(sum, zip(*traffic(plan.halo), strict=True)), default=0)
    return received * -(-iterations // plan.steps)


def describe(plan: SweepPlan) -> str:
    """Return a plan in a few words."""
    sweeps = "sweep" if plan.steps == 1 else "sweeps"
    tiles = "blocks" if plan.into is None else f"tiles {plan.tiles.grid}"
    return f"swept in {tiles}, {plan.steps} {sweeps} an exchange"


STENCIL = Operation(_plan, _layout, _run, _cost)
