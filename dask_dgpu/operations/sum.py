"""Compensated and reproducible sums along some axes."""

from __future__ import annotations

from collections.abc import Sequence

from dask_dgpu.algorithms.kahan_sum import (
    Summing,
    SumPlan,
    cost,
    kahan_sum_rank,
    peak,
    plan_sum,
    received,
)
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import Device
from dask_dgpu.operations.operation import Algorithm, Cost, Report
from dask_dgpu.operations.value import Blocks, Placed, Value
from graph_opt.model.cost import Machine
from graph_opt.model.layout import Layout


def _plan(
    inputs: Sequence[Placed],
    result: Value,
    task: Summing,
    size: int,
    machine: Machine,
    room: float | None,
) -> SumPlan:
    (source,) = inputs
    dtypes = source.dtype, result.dtype
    return plan_sum(source.layout, task, result.cuts, result.indices(), dtypes, size)


def _layout(plan: SumPlan) -> Layout:
    return plan.result


def _run(
    plan: SumPlan, comm: Comm, device: Device, inputs: Sequence[Blocks], report: Report
) -> Blocks:
    (blocks,) = inputs
    return kahan_sum_rank(plan, comm, device, blocks, report)


def _cost(plan: SumPlan, machine: Machine) -> Cost:
    came = received(plan)
    return Cost(
        seconds=cost(plan, machine),
        moved_bytes=max(came),
        peak_bytes=peak(plan),
        text=f"summed where it is, {plan.task.method}",
        details=(("method", plan.task.method), ("total_bytes", sum(came))),
    )


KAHAN_SUM = Algorithm(_plan, _layout, _run, _cost)
