"""Dask's own layers that a gang can compute, block by block."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import cache, lru_cache, partial, wraps
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer

from graph_opt.dask_graph.internals import (
    Alias,
    DataNode,
    GraphNode,
    Task,
    _apply_random,
    _apply_random_func,
    _broadcast_trick_inner,
    _matmul,
    _tensordot,
    chunk_einsum,
    convert_legacy_graph,
    getter,
    getter_inline,
    getter_nofancy,
    load_store_chunk,
    optimize_blockwise,
)
from graph_opt.dask_graph.layers import PieceLayer
from graph_opt.dask_graph.parse import CARRIED, ArrayGraph, unsupported, unwrapped
from graph_opt.model.layout import ArrayNode

OUTSIDE = (getter, getter_nofancy, getter_inline, load_store_chunk)
"""Functions that read or write a file or an array in memory."""

CONTRACTIONS = (_matmul, _tensordot, chunk_einsum)
"""Functions that multiply blocks and leave the sum to later layers: for a rule, or for Dask."""

PACKAGES = (
    *("numpy", "cupy", "dask", "dask_dgpu"),
    *("operator", "_operator", "builtins", "toolz", "cytoolz"),
)
"""Packages of the functions that Dask and our sums call in layers that are not blockwise."""

CREATORS = (unwrapped(_broadcast_trick_inner), _apply_random, _apply_random_func)
"""Functions that create a block from no other, in all kinds of layers."""

CREATING_MODULES = ("numpy", "cupy", "dask.array.chunk")
"""Modules of other such functions: ``arange``, ``linspace``, ``eye``."""

MOST_SIGNATURES = 1024
"""Number of functions whose signatures are remembered."""

BLOCK_FACTS = ("ArrayBlockIdDep", "ArrayValuesDep", "ArrayChunkShapeDep")
"""What a blockwise layer may read besides arrays."""


def members(arrays: ArrayGraph, graph: HighLevelGraph) -> set[str]:
    """Return the layers of a graph that a gang can compute without a collective.

    ``arrays`` are the layers as Dask made them; other layers of ``graph`` are left out.
    """
    return {
        name
        for name, layer in graph.layers.items()
        if name in arrays.layers and not isinstance(layer, PieceLayer) and is_member(arrays, name)
    }


def fuse(graph: HighLevelGraph, local: Collection[str], keys: Collection[Any]) -> HighLevelGraph:
    """Fuse blockwise layers as Dask does, but none of the members ``local`` with another layer.

    ``keys`` are the requested blocks.
    """
    borders = {
        other
        for name, needed in graph.dependencies.items()
        for other in needed
        if (name in local) != (other in local)
    }
    return optimize_blockwise(graph, keys=[*keys, *((name,) for name in borders)])


def is_member(graph: ArrayGraph, name: str) -> bool:
    """Whether a gang can compute the layer ``name``.

    It can if each task computes a block from whole blocks of arrays: elementwise functions,
    slices, transposes, reductions, concatenations and functions of users; or creates a block.
    Layers that read files, depend on anything but arrays, copy blocks between host and device, or
    have tasks that depend on each other stay with Dask.
    """
    layer, needed = graph.layers[name], graph.dependencies[name]
    nodes = [graph.node(each) for each in (name, *needed)]
    if not all(map(_is_carried, nodes)) or len({node.container for node in nodes if node}) > 1:
        return False
    if isinstance(layer, Blockwise):
        function = unwrapped(getattr(layer.task, "func", None))
        kinds = {type(dependency).__name__ for dependency in layer.io_deps.values()}
        if function in (*OUTSIDE, *CONTRACTIONS) or not kinds <= set(BLOCK_FACTS):
            return False
        return bool(needed) or function in CREATORS
    return isinstance(layer, MaterializedLayer) and _is_blockwork(graph, name)


def is_map(layer: Layer) -> bool:
    """Whether each block of a layer is computed from blocks with the same index only."""
    return isinstance(layer, Blockwise) and all(
        index is None or tuple(index) == tuple(layer.output_indices) for _, index in layer.indices
    )


def tasks_of(graph: ArrayGraph | HighLevelGraph, name: str) -> Iterator[tuple[Any, GraphNode]]:
    """Yield keys and tasks of a layer; tasks of the old form are converted on the way."""
    layer = graph.layers[name]
    known: set[Any] = set()
    for key, task in layer.items():
        if isinstance(task, GraphNode):
            yield key, task
            continue
        if not known:
            others = (graph.layers[other].get_output_keys() for other in graph.dependencies[name])
            known.update(layer, *others)
        yield from convert_legacy_graph({key: task}, all_keys=known).items()


def _is_carried(node: ArrayNode | None) -> bool:
    return node is not None and unsupported((node,), node, CARRIED) is None


def _is_blockwork(graph: ArrayGraph, name: str) -> bool:
    """Whether all tasks of a layer compute blocks of one array from blocks of others.

    A task may also read a future, which has no layer.
    """
    needed = graph.dependencies[name]
    task = None
    for key, task in tasks_of(graph, name):
        if not isinstance(key, tuple) or key[0] != name or isinstance(task, DataNode):
            return False
        if not all(isinstance(each, tuple) and each[0] in needed for each in task.dependencies):
            return False
        if not (_joins(task) if task.dependencies else _creates(task)):
            return False
    return task is not None


def _joins(task: GraphNode) -> bool:
    function = unwrapped(getattr(task, "func", None))
    return isinstance(task, Alias) or (_is_known(function) and function not in OUTSIDE)


def _creates(task: GraphNode) -> bool:
    function = unwrapped(task.func) if isinstance(task, Task) else None
    return function in CREATORS or getattr(function, "__module__", None) in CREATING_MODULES


def calls_others(layer: Layer) -> bool:
    """Whether a layer calls functions of users, not only those of Dask and NumPy.

    They may be slow, or return something else at each call.
    """
    return isinstance(layer, Blockwise) and not all(map(_is_known, _functions(layer.task)))


def _functions(task: Any) -> Iterator[Any]:
    """Yield the functions that a task calls, including those of fused tasks and arguments."""
    if isinstance(task, Task):
        yield task.func
        for argument in (*task.args, *task.kwargs.values()):
            yield from _functions(argument)
    elif isinstance(task, DataNode):
        yield from _functions(task.value)
    elif isinstance(task, dict):
        for value in task.values():
            yield from _functions(value)
    elif callable(task):
        yield task


def _is_known(function: Any) -> bool:
    module = str(getattr(unwrapped(function), "__module__", None))
    return module.partition(".")[0] in PACKAGES


@cache
def remembering(has_keyword: Callable[[Any, str], bool]) -> Callable[[Any, str], bool]:
    """Wrap Dask's ``has_keyword`` so that it reads the signature of a function once.

    Dask asks it for each new array: a quarter of the time that building a graph takes. Functions
    that are created anew each time are not remembered, nor what they hold.
    """
    known = lru_cache(MOST_SIGNATURES)(has_keyword)

    @wraps(has_keyword)
    def ask(function: Any, keyword: str) -> bool:
        bare = function
        while type(bare) is partial and not bare.args:
            bare = bare.func
        plain = isinstance(bare, FunctionType) and "<" not in bare.__qualname__
        lasts = plain or isinstance(bare, np.ufunc | BuiltinFunctionType)
        return known(bare, keyword) if lasts else has_keyword(function, keyword)

    return ask
