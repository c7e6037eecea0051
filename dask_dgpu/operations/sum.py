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
from dask_dgpu.kernels.sums.partial import Exact, Kind
from dask_dgpu.operations.operation import Cost, Operation, Report
from dask_dgpu.operations.value import Blocks, Placed, Value
from graph_opt.model.cost import Machine
from graph_opt.model.layout import Layout
from graph_opt.rules.sum import match

Task = tuple[tuple[int, ...], bool, Exact, Kind]
"""Axes, whether they are kept, method and kind."""


def _plan(
    inputs: Sequence[Placed],
    result: Value,
    task: Task,
    size: int,
    machine: Machine,
    room: float | None,
) -> SumPlan:
    (source,) = inputs
    dtypes, summing = (source.dtype, result.dtype), Summing(*task)
    return plan_sum(source.layout, summing, result.cuts, result.indices(), dtypes, size)


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


SUM = Operation(_plan, _layout, _run, _cost, match)
