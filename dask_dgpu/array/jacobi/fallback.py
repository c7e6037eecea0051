"""Jacobi's iteration without a gang."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from dask.array.core import Array, map_blocks
from dask.base import persist

from dask_dgpu.algorithms.jacobi import JacobiTask, Outcome, Scale, verdict
from dask_dgpu.array.stencil import swept, thick
from dask_dgpu.errors import DgpuError
from dask_dgpu.kernels.stencil import neighbours_mean
from graph_opt.dask_graph.internals import GraphNode, Task
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


class NoGangError(DgpuError):
    """An iteration as a task of plain Dask, which has to use :func:`in_rounds` instead."""


def expand(piece: StencilPiece) -> tuple[str, Mapping[Any, GraphNode]]:
    """Return the name of the output, and tasks that raise :class:`NoGangError`.

    ``jacobi`` iterates in rounds if it expects no gang, or if the gang is left to Dask later.
    """
    name = piece.output.name
    keys = [(name, *index) for index in piece.output.indices]
    return name, {key: Task(key, _refuse) for key in keys}


def _refuse() -> Block:
    raise NoGangError("expected a gang for Jacobi's iteration, got a task of plain Dask")
