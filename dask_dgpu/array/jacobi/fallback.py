"""Jacobi's iteration without a gang."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from dask.array.core import Array, map_blocks
from dask.base import persist
from dask.tokenize import tokenize

from dask_dgpu.algorithms.jacobi import (
    JacobiTask,
    Outcome,
    Scale,
    jacobi_rank,
    plan_jacobi,
    report,
    verdict,
)
from dask_dgpu.array.stencil import swept, thick
from dask_dgpu.comm.local import run_local
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import Device
from dask_dgpu.kernels.device.host import HostDevice
from dask_dgpu.kernels.stencil import neighbours_mean
from graph_opt.dask_graph.internals import GraphNode, List, Task, TaskRef
from graph_opt.model.cost import HOST
from graph_opt.model.layout import Layout, cuts_of
from graph_opt.model.node import ArrayNode
from graph_opt.pieces.stencil import StencilPiece

Block = Any

SWEEPS = 20
"""Number of sweeps of plain Dask between two residuals."""


def in_rounds(u0: Array, rhs: Array, task: JacobiTask) -> tuple[Array, Outcome]:
    """Iterate by plain Dask: some sweeps, then a residual, and so on."""
    taps = neighbours_mean(task.ndim)
    u = thick(u0, taps)
    added = (rhs * np.dtype(task.dtype).type(-task.damping)).rechunk(u.chunks, method="tasks")
    (u, added) = persist(u, added)

    def sweep(x: Array) -> Array:
        return swept(x, taps, task.boundary, added)

    zero = u.map_blocks(np.zeros_like, dtype=u.dtype, meta=u._meta)
    scale = Scale.of(task, float(_change(zero, sweep(zero)).compute()))
    history: list[tuple[int, float]] = []
    done = 0
    while True:
        u, change = persist(u, _change(u, sweep(u)))
        history.append((done, scale.residual(float(change.compute()))))
        reason = verdict(task, done, history[-1][1], history[0][1])
        if reason is not None:
            break
        sweeps = min(SWEEPS, task.max_iterations - done)
        for _ in range(sweeps):
            u = sweep(u)
        done += sweeps
    u = Array(u.dask, u.name, u.chunks, dtype=u.dtype, meta=u0._meta)
    (u,) = persist(u.rechunk(u0.chunks, method="tasks"))
    return u, Outcome(reason, tuple(history))


def _change(before: Array, after: Array) -> Array:
    """Return the sum of the squared differences."""
    sums = map_blocks(
        _squares,
        before,
        after,
        chunks=tuple((1,) * blocks for blocks in before.numblocks),
        dtype="float64",
        meta=np.empty((0,) * before.ndim),
    )
    return sums.sum()


def _squares(before: Block, after: Block) -> Block:
    difference = after - before
    wide = difference.astype(np.result_type(difference.dtype, np.float64))
    return np.full((1,) * before.ndim, float((abs(wide) ** 2).sum()))


def expand(piece: StencilPiece) -> tuple[str, Mapping[Any, GraphNode]]:
    """Return the name of the output and its tasks: one iterates, the others select blocks.

    ``jacobi`` uses :func:`in_rounds` if it expects no gang. This is for a layer that falls
    back to Dask later.
    """
    (u0, rhs), task = piece.sources, cast(JacobiTask, piece.task)
    name = f"jacobi-whole-{tokenize(u0.name, rhs.name, task)}"
    solve = (f"solve-{name}", 0)
    blocks = [List(*(TaskRef((node.name, *i)) for i in node.indices)) for node in piece.sources]
    tasks: dict[Any, GraphNode] = {solve: Task(solve, solve_whole, task, u0.chunks, *blocks)}
    output = ArrayNode(name, report.beside(u0.chunks, task.dtype), task.dtype, u0.container)
    for index in output.indices:
        key = (name, *index)
        tasks[key] = Task(key, operator.getitem, TaskRef(solve), index)
    return name, tasks


def solve_whole(
    task: JacobiTask, chunks: tuple[tuple[int, ...], ...], u0: list[Block], rhs: list[Block]
) -> dict[tuple[int, ...], Block]:
    """Iterate in one task; return all blocks, including those of the report."""
    layout = Layout(tuple(map(cuts_of, chunks)), (0,) * len(u0))
    plan = plan_jacobi(layout, layout, task, 1, HOST)
    device = _device_of(u0[0])
    first, right = (dict(zip(layout.indices(), blocks, strict=True)) for blocks in (u0, rhs))

    def rank_program(comm: Comm) -> tuple[dict[tuple[int, ...], Block], Outcome]:
        return jacobi_rank(plan, comm, device, first, right)

    ((blocks, outcome),) = run_local(1, rank_program)
    device.synchronize()
    tail = report.beside(chunks, task.dtype)[0][-1]
    for index in layout.indices():
        if index[0] == 0:
            shape = (tail, *layout.block_shape(index)[1:])
            if any(index):
                block = np.zeros(shape, task.dtype)
            else:
                block = report.written(outcome, shape, task.dtype)
            blocks[layout.grid[0], *index[1:]] = device.to_device(block)
    return blocks


def _device_of(block: Block) -> Device:
    if isinstance(block, np.ndarray):
        return HostDevice()
    from dask_dgpu.kernels.device.cuda import CudaDevice

    return CudaDevice()
