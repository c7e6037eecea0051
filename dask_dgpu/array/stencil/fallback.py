"""Sweeps as plain Dask tasks: overlapping blocks, and a function of each block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from dask.array.core import Array, map_blocks
from dask.array.overlap import overlap

from dask_dgpu.algorithms.halo import Boundary
from dask_dgpu.algorithms.stencil import StencilTask
from dask_dgpu.array.deferred import deferred
from dask_dgpu.kernels.stencil import Taps, padded, weighted
from graph_opt.dask_graph.internals import GraphNode, convert_legacy_graph, ensure_minimum_chunksize
from graph_opt.dask_graph.layers import Expand
from graph_opt.model.layout import ArrayNode, Chunks
from graph_opt.pieces.stencil import StencilPiece


def sweeping(
    name: str, sources: tuple[Array, ...], chunks: Chunks, task: Any, expand: Expand
) -> Array:
    """Return the result of a :class:`StencilTask` or a ``JacobiTask``, as one layer.

    The sources have the task's dtype. See :func:`~dask_dgpu.array.deferred.deferred` for
    the other parameters.
    """

    def piece(output: ArrayNode, nodes: tuple[ArrayNode, ...]) -> StencilPiece:
        return StencilPiece(output, nodes, task)

    return deferred(name, sources, chunks, task.dtype, task, piece, expand)


def expand(piece: StencilPiece) -> tuple[str, Mapping[Any, GraphNode]]:
    """Return the name of the output and all its tasks, for blocks of any type."""
    (source,), task = piece.sources, cast(StencilTask, piece.task)
    x = Array({}, source.name, source.chunks, dtype=source.dtype)
    y = thick(x, task.taps)
    for _ in range(task.iterations):
        y = swept(y, task.taps, task.boundary)
    y = y.rechunk(x.chunks, method="tasks")
    tasks = dict(y.dask)
    read = {(source.name, *index) for index in source.indices}
    return y.name, convert_legacy_graph(tasks, all_keys={*tasks, *read})


def thick(x: Array, taps: Taps) -> Array:
    """Return an array with chunks at least as long as the reach of a stencil."""
    chunks = tuple(
        ensure_minimum_chunksize(max(1, reach), sizes)
        for reach, sizes in zip(taps.radius, x.chunks, strict=True)
    )
    return x.rechunk(chunks, method="tasks")


def swept(
    x: Array, taps: Taps, boundary: tuple[Boundary, ...], added: Array | None = None
) -> Array:
    """Apply one sweep, and add another array of the same chunks."""
    depth = dict(enumerate(taps.radius))
    # Dask creates other boundaries in the declared type of blocks, which may be wrong
    around = {axis: each if each == "periodic" else "none" for axis, each in enumerate(boundary)}
    blocks = overlap(x, depth, around, allow_rechunk=False)
    return map_blocks(
        sweep_block,
        blocks,
        *([] if added is None else [added]),
        taps=taps,
        boundary=boundary,
        grid=x.numblocks,
        chunks=x.chunks,
        dtype=x.dtype,
        meta=np.empty((0,) * x.ndim, x.dtype),
        token="sweep",
    )


def sweep_block(
    block: Any,
    added: Any = None,
    *,
    taps: Taps,
    boundary: tuple[Boundary, ...],
    grid: tuple[int, ...],
    block_id: tuple[int, ...] = (),
) -> Any:
    """Sweep a block with ghost cells, except beyond the ends of an axis that is not periodic."""
    for axis, (reach, each) in enumerate(zip(taps.radius, boundary, strict=True)):
        if each is not None and each != "periodic":
            first, last = block_id[axis] == 0, block_id[axis] == grid[axis] - 1
            block = padded(block, axis, (reach * first, reach * last), each)
    result = weighted(block, taps)
    if added is not None:
        result += added
    return result
