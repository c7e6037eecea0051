"""Compensated and reproducible sums along some axes."""

from __future__ import annotations

from operator import attrgetter

from dask_dgpu.algorithms.kahan_sum.plan import Summing, SumPlan, cost, peak, plan_sum, received
from dask_dgpu.algorithms.kahan_sum.rank import kahan_sum_rank
from dask_dgpu.operations.operation import Cost, Operation, Request
from graph_opt.model.cost import Machine


def _plan(request: Request) -> SumPlan:
    (source,) = request.inputs
    result, summing = request.result, Summing(*request.task)
    dtypes, size, machine = (source.dtype, result.dtype), request.size, request.machine
    hosts = machine.hosts if machine.two_level(size) else ()
    return plan_sum(
        source.layout, summing, result.cuts, result.indices(), dtypes, size, hosts=hosts
    )


def _cost(plan: SumPlan, machine: Machine) -> Cost:
    came = received(plan)
    return Cost(
        seconds=cost(plan, machine),
        moved_bytes=max(came),
        peak_bytes=peak(plan),
        text=f"summed where it is, {plan.task.method}",
        details=(("method", plan.task.method), ("total_bytes", sum(came))),
    )


SUM = Operation(
    plan=_plan,
    layout=attrgetter("result"),
    run=kahan_sum_rank,
    cost=_cost,
    repeats=lambda plan: plan.task.method == "compensated",  # the host adds exact sums
)
