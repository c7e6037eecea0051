"""Functions of users, called once on each rank."""

from __future__ import annotations

from operator import attrgetter

from dask_dgpu.algorithms.shard_map.plan import ShardMapPlan, plan_shard_map, shards
from dask_dgpu.algorithms.shard_map.rank import shard_map_rank
from dask_dgpu.operations.operation import Cost, Operation, Request, place
from graph_opt.model.cost import Machine
from graph_opt.model.layout import counted


def _plan(request: Request) -> ShardMapPlan:
    task, result, size = request.task, request.result, request.size
    shard = shards(result.cuts, task.axis, size)
    target = shard if shard.cuts == result.cuts else place(shard, result, size)
    inputs = tuple((each.layout, each.dtype) for each in request.inputs)
    return plan_shard_map(task, inputs, shard, target, result.dtype, size)


def _cost(plan: ShardMapPlan, machine: Machine) -> Cost:
    received = plan.traffic.sum(axis=0).tolist()
    return Cost(
        seconds=plan.seconds(machine),
        moved_bytes=max(received),
        peak_bytes=plan.peak_bytes(),
        text=f"{plan.task.name} on {counted(plan.size, 'rank')}",
        details=(("ranks", plan.size), ("total_bytes", sum(received))),
    )


SHARD_MAP = Operation(
    plan=_plan,
    layout=attrgetter("result"),
    run=shard_map_rank,
    cost=_cost,
    repeats=lambda plan: False,  # a function of a user may do anything
)
