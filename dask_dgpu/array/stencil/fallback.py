"""Sweeps as plain Dask tasks: overlapping blocks, and a function of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from dask._task_spec import GraphNode, convert_legacy_graph
from dask.array.core import Array, map_blocks
from dask.array.overlap import ensure_minimum_chunksize, overlap
from dask.highlevelgraph import HighLevelGraph
from dask.tokenize import tokenize
from dask.utils import typename

from dask_dgpu.algorithms.halo import Boundary
from dask_dgpu.algorithms.stencil import StencilTask
from dask_dgpu.kernels.stencil import Taps, padded, weighted
from graph_opt.dask_graph.deferred import DeferredLayer, Expand
from graph_opt.model.node import ArrayNode, Chunks


def layer_of(
    name: str, sources: Sequence[Array], chunks: Chunks, task: Any, expand: Expand
) -> Array:
    """Return what a task makes of arrays, as one layer.

    Parameters
    ----------
    name : str
        What the keys of the output begin with.
    sources : sequence of dask.array.Array
        Of the dtype of the task.
    chunks : tuple of tuple of int
        Of the output.
    task : StencilTask or JacobiTask
        What is done.
    expand : callable
        As in :class:`~graph_opt.dask_graph.deferred.DeferredLayer`.
    """
    key = f"{name}-{tokenize(*(x.name for x in sources), task)}"
    container = typename(type(sources[0]._meta))
    nodes = tuple(ArrayNode(x.name, x.chunks, x.dtype.name, container) for x in sources)
    output = ArrayNode(key, chunks, task.dtype, container)
    layer = DeferredLayer(nodes if len(nodes) > 1 else nodes[0], output, task, expand)
    graph = HighLevelGraph.merge(*(x.dask for x in sources))
    names = {name for x in sources for name in x.__dask_layers__()}
    graph = HighLevelGraph({**graph.layers, key: layer}, {**graph.dependencies, key: names})
    return Array(graph, key, chunks, dtype=task.dtype, meta=sources[0]._meta)


def expand(source: ArrayNode, task: StencilTask) -> tuple[str, Mapping[Any, GraphNode]]:
    """Return the name of the output and all tasks that make it from a source.

    Blocks may be of any type: no task depends on it, so none need be at hand here.
    """
    x = Array({}, source.name, source.chunks, dtype=source.dtype)
    y = thick(x, task.taps)
    for _ in range(task.iterations):
        y = swept(y, task.taps, task.boundary)
    y = y.rechunk(x.chunks, method="tasks")
    tasks = dict(y.dask)
    read = {(source.name, *index) for index in source.indices}
    return y.name, convert_legacy_graph(tasks, all_keys={*tasks, *read})


def thick(x: Array, taps: Taps) -> Array:
    """Return an array in chunks that are at least as long as a stencil reaches."""
    chunks = tuple(
        ensure_minimum_chunksize(max(1, reach), sizes)
        for reach, sizes in zip(taps.radius, x.chunks, strict=True)
    )
    return x.rechunk(chunks, method="tasks")


def swept(
    x: Array, taps: Taps, boundary: tuple[Boundary, ...], added: Array | None = None
) -> Array:
    """Sweep once, and add another array of the same chunks."""
    depth = dict(enumerate(taps.radius))
    # Dask makes other boundaries of the type that it believes blocks to have
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
    """Sweep a block that has ghost cells, but none beyond an array that is not periodic."""
    for axis, (reach, each) in enumerate(zip(taps.radius, boundary, strict=True)):
        if each is not None and each != "periodic":
            first, last = block_id[axis] == 0, block_id[axis] == grid[axis] - 1
            block = padded(block, axis, (reach * first, reach * last), each)
    result = weighted(block, taps)
    if added is not None:
        result += added
    return result
