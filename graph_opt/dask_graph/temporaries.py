"""The memory that functions of blocks allocate beside their results, in blocks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from graph_opt.dask_graph.expressions import read_blockwise
from graph_opt.dask_graph.members import tasks_of
from graph_opt.dask_graph.parse import ArrayGraph
from graph_opt.dask_graph.work import PASSES, array, kernel_of, layers_of, named
from graph_opt.model.layout import CUPY

BLOCKS: Mapping[str, float] = {
    **dict.fromkeys(("cumsum", "cumprod", "mean_chunk", "concatenate"), 0.0),
    "moment_chunk": 1.0,
    # a copy of the boundary along each axis, and of the product with a weight
    "sweep_block": 3.0,
}
"""Temporaries of a function over the largest block that it reads or makes."""

USUAL = 1.0
"""The same of other functions: of NumPy's transforms and moments, and a guess for users' ones."""


def temporaries(graph: ArrayGraph, name: str, given: Collection[str]) -> float:
    """Return the temporaries of a task of the layer ``name``, in its largest blocks.

    The layer is fused of all layers of ``graph`` between the layers ``given`` and itself.
    """
    layers = layers_of(graph, name, given)
    kernel = kernel_of(graph, layers)
    others = [found for each in layers - kernel if (found := _function(graph, each)) is not None]
    # results within a chain of functions are no results of the task
    within = float(len(others) + bool(kernel) > 1)
    return max([_of_kernel(graph, kernel), *others]) + within


def _of_kernel(graph: ArrayGraph, kernel: Collection[str]) -> float:
    """Return the temporaries of a kernel: tiles, or on a CPU all that a reduction reads."""
    reduces = any((found := read_blockwise(graph, each)) and found.chunked for each in kernel)
    on_gpu = any((node := array(graph, each)) and node.container == CUPY for each in kernel)
    return float(reduces and len(kernel) > 1 and not on_gpu)


def _function(graph: ArrayGraph, name: str) -> float | None:
    """Return the temporaries of the function of a layer alone, ``None`` if it makes a view."""
    layer: Any = graph.layers[name]
    task = getattr(layer, "task", None) or next(iter(tasks_of(graph, name)), (None, None))[1]
    function = getattr(task, "func", None)
    if function is None:
        return None
    word = named(function, getattr(task, "kwargs", {}))
    if PASSES.get(word) == 0.0:
        return None
    return BLOCKS.get(word, USUAL if read_blockwise(graph, name) is None else 0.0)
