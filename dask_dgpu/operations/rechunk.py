"""Rechunks, of an array or of its transpose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dask_dgpu.algorithms.redistribute import (
    RedistributePlan,
    buffer_bytes,
    cost,
    plan_redistribute,
    redistribute_rank,
    traffic,
    workspace,
)
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import Device
from dask_dgpu.operations.operation import Cost, Operation, Report
from dask_dgpu.operations.place import place
from dask_dgpu.operations.value import Blocks, Placed, Value
from graph_opt.model.cost import Machine
from graph_opt.model.layout import Layout
from graph_opt.rules.rechunk import match

Axes = tuple[int, ...]


@dataclass(frozen=True)
class RechunkPlan:
    """A plan, and the order in which the axes of its input are taken, ``None`` for their own."""

    plan: RedistributePlan
    axes: Axes | None


def _plan(
    inputs: Sequence[Placed],
    result: Value,
    task: Axes | None,
    size: int,
    machine: Machine,
    room: float | None,
) -> RechunkPlan:
    (given,) = inputs
    source = given if task is None else given.transposed(task)
    target = place(source.layout, result, size)
    itemsize = np.dtype(result.dtype).itemsize
    share = max(target.share(rank, itemsize) for rank in range(size))
    limit = buffer_bytes(share, share, machine)
    plan = plan_redistribute(source.layout, target, result.dtype, size, limit=limit)
    return RechunkPlan(plan, task)


def _layout(rechunk: RechunkPlan) -> Layout:
    return rechunk.plan.target


def _run(
    plan: RechunkPlan, comm: Comm, device: Device, inputs: Sequence[Blocks], report: Report
) -> Blocks:
    (blocks,) = inputs
    axes = plan.axes
    if axes is not None:
        blocks = {
            tuple(index[axis] for axis in axes): block.transpose(axes)
            for index, block in blocks.items()
        }
    return redistribute_rank(plan.plan, comm, device, blocks, progress=report)


def _cost(rechunk: RechunkPlan, machine: Machine) -> Cost:
    plan = rechunk.plan
    received = [sum(column) for column in zip(*traffic(plan), strict=True)]
    shares = (
        plan.source.share(rank, plan.itemsize) + plan.target.share(rank, plan.itemsize)
        for rank in range(plan.size)
    )
    rounds = "round" if plan.rounds == 1 else "rounds"
    return Cost(
        seconds=cost(plan, machine),
        moved_bytes=max(received),
        peak_bytes=max(shares) + workspace(plan),
        text=f"redistributed in {plan.rounds} {rounds}",
        details=(("rounds", plan.rounds), ("total_bytes", sum(received))),
    )


RECHUNK = Operation(_plan, _layout, _run, _cost, match)
