"""Rechunks, and whatever else only moves blocks."""

from __future__ import annotations

from collections.abc import Sequence

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
from dask_dgpu.runtime.collectives.algorithm import Algorithm, Cost, Report
from dask_dgpu.runtime.collectives.place import place
from dask_dgpu.runtime.value import Blocks, Placed, Value
from graph_opt.cost import Machine
from graph_opt.layout import Layout


def _plan(
    inputs: Sequence[Placed],
    result: Value,
    task: None,
    size: int,
    machine: Machine,
    room: float | None,
) -> RedistributePlan:
    (source,) = inputs
    target = place(source.layout, result, size)
    itemsize = np.dtype(result.dtype).itemsize
    share = max(target.share(rank, itemsize) for rank in range(size))
    limit = buffer_bytes(share, share, machine)
    return plan_redistribute(source.layout, target, result.dtype, size, limit=limit)


def _layout(plan: RedistributePlan) -> Layout:
    return plan.target


def _run(
    plan: RedistributePlan, comm: Comm, device: Device, inputs: Sequence[Blocks], report: Report
) -> Blocks:
    (blocks,) = inputs
    return redistribute_rank(plan, comm, device, blocks, progress=report)


def _cost(plan: RedistributePlan, machine: Machine) -> Cost:
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


REDISTRIBUTE = Algorithm(_plan, _layout, _run, _cost)
