"""Jacobi's iteration, with a report of its residuals.

The report is a block more along the first axis: its bytes are those of some float64 numbers,
whatever the dtype of the array.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from dask_dgpu.algorithms.jacobi import (
    JacobiPlan,
    JacobiTask,
    Outcome,
    cost,
    jacobi_rank,
    peak,
    plan_jacobi,
)
from dask_dgpu.algorithms.jacobi.rank import REASONS
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import Device
from dask_dgpu.runtime.collectives.algorithm import Algorithm, Cost, Report
from dask_dgpu.runtime.collectives.stencil import describe, moved_bytes
from dask_dgpu.runtime.value import Blocks, Placed, Value
from graph_opt.cost import Machine
from graph_opt.layout import Layout

Array = Any

REPORT_BYTES = 1 << 15
"""Of a report: more than two numbers for each residual that is asked for at most."""


def report_rows(chunks: tuple[tuple[int, ...], ...], itemsize: int) -> int:
    """Return how long the report's block is along the first axis."""
    row = int(np.prod([sizes[0] for sizes in chunks[1:]])) * itemsize
    return -(-REPORT_BYTES // row)


def written(outcome: Outcome, shape: tuple[int, ...], dtype: str) -> Array:
    """Return a report as a block."""
    room = REPORT_BYTES // 16 - 1
    history = outcome.history
    if len(history) > room:  # the last ones tell more than the first
        history = (history[0], *history[len(history) - room + 1 :])
    numbers = [REASONS.index(outcome.reason), len(history), *chain.from_iterable(history)]
    block = np.zeros(shape, dtype)
    values = np.array(numbers, np.float64).view(np.uint8)
    block.reshape(-1).view(np.uint8)[: len(values)] = values
    return block


def read(block: Array) -> Outcome:
    """Return the report in a block."""
    flat = np.ascontiguousarray(block).reshape(-1).view(np.uint8)
    reason, count = flat[:16].view(np.float64)
    numbers = flat[16 : 16 + 16 * int(count)].view(np.float64).reshape(-1, 2)
    return Outcome(REASONS[int(reason)], tuple((int(at), float(r)) for at, r in numbers))


def _plan(
    inputs: Sequence[Placed],
    result: Value,
    task: JacobiTask,
    size: int,
    machine: Machine,
    room: float | None,
) -> JacobiPlan:
    u0, rhs = inputs
    return plan_jacobi(u0.layout, rhs.layout, task, size, machine, room=room)


def _layout(plan: JacobiPlan) -> Layout:
    """Return the layout of u, and of the report on rank 0."""
    source = plan.sweeps.source
    rows, *others = source.cuts
    chunks = tuple(tuple(np.diff(cuts).tolist()) for cuts in source.cuts)
    tail = report_rows(chunks, plan.sweeps.itemsize)
    beside = int(np.prod(source.grid[1:]))
    owners = (*source.owners, 0, *(-1,) * (beside - 1))
    return Layout(((*rows, rows[-1] + tail), *others), owners)


def _run(
    plan: JacobiPlan, comm: Comm, device: Device, inputs: Sequence[Blocks], report: Report
) -> Blocks:
    u0, rhs = inputs
    made, outcome = jacobi_rank(plan, comm, device, u0, rhs, report)
    if comm.rank == 0:
        index = (plan.sweeps.source.grid[0], *(0,) * (plan.task.ndim - 1))
        shape = _layout(plan).block_shape(index)
        with device.computing():
            made[index] = device.to_device(written(outcome, shape, plan.task.dtype))
        device.join()
    return made


def _cost(plan: JacobiPlan, machine: Machine) -> Cost:
    sweeps, task = plan.sweeps, plan.task
    return Cost(
        seconds=cost(plan, machine),
        moved_bytes=moved_bytes(sweeps, task.max_iterations),
        peak_bytes=peak(plan),
        text=f"{describe(sweeps)}, a residual every {plan.every * sweeps.steps}",
        details=(("steps", sweeps.steps), ("tiles", sweeps.tiles.grid), ("every", plan.every)),
    )


JACOBI = Algorithm(_plan, _layout, _run, _cost)
