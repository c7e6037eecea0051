"""Ghost cells: every block extended by parts of its neighbours, or of a boundary."""

from __future__ import annotations

from collections.abc import Sequence

from dask_dgpu.algorithms.halo import (
    Boundary,
    Depth,
    HaloPlan,
    cost,
    halo_rank,
    plan_halo,
    traffic,
    workspace,
)
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import Device
from dask_dgpu.operations.operation import Cost, Operation, Report
from dask_dgpu.operations.value import Blocks, Placed, Value
from graph_opt.model.cost import Machine
from graph_opt.model.layout import Layout
from graph_opt.rules.overlap import match

Task = tuple[tuple[Depth, ...], tuple[Boundary, ...]]


def _plan(
    inputs: Sequence[Placed],
    result: Value,
    task: Task,
    size: int,
    machine: Machine,
    room: float | None,
) -> HaloPlan:
    (source,) = inputs
    depth, boundary = task
    return plan_halo(source.layout, source.dtype, depth, boundary, size, wanted=result.blocks)


def _layout(plan: HaloPlan) -> Layout:
    return plan.target


def _run(
    plan: HaloPlan, comm: Comm, device: Device, inputs: Sequence[Blocks], report: Report
) -> Blocks:
    (blocks,) = inputs
    return halo_rank(plan, comm, device, blocks, progress=report)


def _cost(plan: HaloPlan, machine: Machine) -> Cost:
    moved = traffic(plan)
    received = [sum(column) for column in zip(*moved, strict=True)]
    messages = sum(nbytes > 0 for row in moved for nbytes in row)
    shares = (
        plan.layout.share(rank, plan.itemsize) + plan.target.share(rank, plan.itemsize)
        for rank in range(plan.size)
    )
    return Cost(
        seconds=cost(plan, machine),
        moved_bytes=max(received),
        peak_bytes=max(shares) + workspace(plan),
        text=f"ghost cells in {messages} {'message' if messages == 1 else 'messages'}",
        details=(("messages", messages), ("total_bytes", sum(received))),
    )


OVERLAP = Operation(_plan, _layout, _run, _cost, match)
