"""Matrix products by SUMMA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from dask_dgpu.algorithms.summa import Operand, SummaPlan, plan_summa, summa_rank
from dask_dgpu.algorithms.summa.choose import cost
from dask_dgpu.algorithms.summa.schedule import traffic, workspace
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import Device
from dask_dgpu.runtime.collectives.algorithm import Algorithm, Cost, Report
from dask_dgpu.runtime.value import Blocks, Placed, Value
from graph_opt.cost import Machine
from graph_opt.layout import Layout

Matrix = dict[tuple[int, int], Any]


def _plan(
    inputs: Sequence[Placed],
    result: Value,
    task: None,
    size: int,
    machine: Machine,
    room: float | None,
) -> SummaPlan:
    a, b = map(_operand, inputs)
    return plan_summa(a, b, result.dtype, size, machine, room=room)


def _operand(placed: Placed) -> Operand:
    rows, columns = placed.layout.cuts
    return Operand(rows, columns, placed.dtype, placed.layout.owners)


def _layout(plan: SummaPlan) -> Layout:
    owners = plan.owners()
    return Layout((plan.a.rows, plan.b.columns), tuple(owners[index] for index in sorted(owners)))


def _run(
    plan: SummaPlan, comm: Comm, device: Device, inputs: Sequence[Blocks], report: Report
) -> Blocks:
    a, b = (cast(Matrix, blocks) for blocks in inputs)
    return cast(Blocks, summa_rank(plan, comm, device, a, b, report))


def _cost(plan: SummaPlan, machine: Machine) -> Cost:
    steps = [traffic(plan, step)[1] for step in range(plan.steps)]
    received = [sum(rank) for rank in zip(*steps, strict=True)]
    strategy = strategy_of(plan)
    panels = "panel" if plan.steps == 1 else "panels"
    return Cost(
        seconds=cost(plan, machine, max(received), max(steps[0])),
        moved_bytes=max(received),
        peak_bytes=_peak(plan),
        text=f"{strategy}, mesh {plan.mesh}, {plan.steps} {panels}",
        details=(("mesh", plan.mesh), ("strategy", strategy), ("steps", plan.steps)),
    )


def strategy_of(plan: SummaPlan) -> str:
    """Name the corner of the family of meshes that a plan is."""
    name = _mesh_name(plan)
    return f"{name}, one-sided" if plan.one_sided and plan.size > 1 else name


def _mesh_name(plan: SummaPlan) -> str:
    rows, columns, depth = plan.mesh
    if depth > 1:
        return "inner" if rows == columns == 1 else "summa with layers"
    if rows == columns == 1:
        return "one rank"
    if columns == 1:
        return "ring over rows"
    return "ring over columns" if rows == 1 else "summa"


def _peak(plan: SummaPlan) -> int:
    owned = [0] * plan.size
    itemsize = np.dtype(plan.accumulator).itemsize
    for (i, j), rank in plan.owners().items():
        height = plan.a.rows[i + 1] - plan.a.rows[i]
        owned[rank] += height * (plan.b.columns[j + 1] - plan.b.columns[j]) * itemsize
    shares = (plan.a.share(rank) + plan.b.share(rank) + owned[rank] for rank in range(plan.size))
    return max(shares) + workspace(plan)


SUMMA = Algorithm(_plan, _layout, _run, _cost)
