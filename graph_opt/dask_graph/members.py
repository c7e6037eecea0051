"""Dask's own layers that a gang can compute, block by block."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain
from typing import Any

from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer

from graph_opt.dask_graph.internals import (
    Alias,
    DataNode,
    GraphNode,
    Task,
    TaskRef,
    _apply_random,
    _apply_random_func,
    _broadcast_trick_inner,
    _matmul,
    _tensordot,
    apply,
    chunk_einsum,
    convert_legacy_graph,
    getter,
    getter_inline,
    getter_nofancy,
    load_store_chunk,
    optimize_blockwise,
)
from graph_opt.dask_graph.layers import PieceLayer
from graph_opt.dask_graph.parse import CARRIED, ArrayGraph, once, unsupported, unwrapped
from graph_opt.dask_graph.recipes import Together
from graph_opt.model.layout import ArrayNode

GETTERS = (getter, getter_nofancy, getter_inline)
"""Functions that read an array in memory, or one that is stored."""

OUTSIDE = (*GETTERS, load_store_chunk)
"""Functions that read or write a file or an array in memory."""

CONTRACTIONS = (_matmul, _tensordot, chunk_einsum)
"""Functions that multiply blocks and leave the sum to later layers: for a rule, or for Dask."""

PACKAGES = (
    *("numpy", "cupy", "dask", "dask_dgpu"),
    *("operator", "_operator", "builtins", "toolz", "cytoolz"),
)
"""Packages of the functions that Dask and our sums call: they do nothing but return a block."""

ARRAYS = ("numpy", "cupy", "dask.array", "dask.utils", "dask._task_spec", "_operator", "builtins")
"""Packages of the functions in layers between arrays that Dask does not declare."""

CREATORS = (unwrapped(_broadcast_trick_inner), _apply_random, _apply_random_func)
"""Functions that create a block from no other, in all kinds of layers."""

CREATING_MODULES = ("numpy", "cupy", "dask.array.chunk")
"""Modules of other such functions: ``arange``, ``linspace``, ``eye``."""

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


@once
def is_member(graph: ArrayGraph, name: str) -> bool:
    """Whether a gang can compute the layer ``name``.

    It can if each task computes a block from whole blocks of arrays: elementwise functions,
    slices, transposes, reductions, concatenations and functions of users; or creates a block.
    Tasks may depend on each other, as in a running sum. Layers that read files, depend on anything
    but arrays, or copy blocks between host and device stay with Dask, and those that the user left
    to it.
    """
    layer, needed = graph.layers[name], graph.dependencies[name]
    if graph.is_out(name):
        return False
    if not all(_is_carried(graph, each) for each in needed):
        return False
    if len({container_of(graph, each) for each in (name, *needed)}) > 1:
        return False
    if not is_declared(layer):
        between = bool(needed) and bool(graph.dependents[name]) and name not in graph.requested
        return between and _calls_only(ARRAYS, graph, name) and _is_work(graph, name)
    return _is_carried(graph, name) and _is_work(graph, name)


def _is_work(graph: ArrayGraph, name: str) -> bool:
    layer = graph.layers[name]
    if isinstance(layer, Blockwise):
        function = unwrapped(getattr(layer.task, "func", None))
        kinds = {type(dependency).__name__ for dependency in layer.io_deps.values()}
        if function in (*OUTSIDE, *CONTRACTIONS) or not kinds <= set(BLOCK_FACTS):
            return False
        return bool(graph.dependencies[name]) or function in CREATORS
    return isinstance(layer, MaterializedLayer) and _is_blockwork(graph, name)


def is_declared(layer: Layer) -> bool:
    """Whether a layer is of a collection: its tasks compute the blocks of an array.

    Dask composes some operations, such as QR, of layers that it does not declare.
    """
    return bool(layer.collection_annotations)


@once
def container_of(graph: ArrayGraph, name: str) -> str | None:
    """Return the type of the blocks of a layer, of undeclared ones that of the arrays before."""
    layer, node = graph.layers.get(name), graph.node(name)
    if node is not None or layer is None or is_declared(layer):
        return None if node is None else node.container
    return next((container_of(graph, each) for each in sorted(graph.dependencies[name])), None)


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


def _is_carried(graph: ArrayGraph, name: str) -> bool:
    node = graph.node(name)
    if node is None:
        layer = graph.layers.get(name)
        return layer is not None and not is_declared(layer) and is_member(graph, name)
    return unsupported((node,), node, CARRIED) is None


def _is_blockwork(graph: ArrayGraph, name: str) -> bool:
    """Whether all tasks of a layer compute blocks from blocks of other arrays, or of its own.

    At least one must be a block of its array: elements taken by points have other keys. A task
    may also read a future, which has no layer.
    """
    layer, needed, node = graph.layers[name], graph.dependencies[name], graph.node(name)
    blocks = 0
    for key, task in tasks_of(graph, name):
        own = is_block(key, name, node)
        blocks += own
        if not own:
            first = key[0] if isinstance(key, tuple) else key
            several = first != name and first in graph.layers  # which have the same task
            if node is None or not needed or several:
                return False
        if isinstance(task, DataNode):
            if own:
                return False
            continue
        for each in task.dependencies:
            if each in layer and not isinstance(layer[each], TaskRef):  # of a future
                if node is None:
                    return False
            elif not isinstance(each, tuple) or each[0] not in needed:
                return False
        if not (_joins(task) if task.dependencies else _creates(task)):
            return False
    return blocks > 0


def is_block(key: Any, name: str, node: ArrayNode | None) -> bool:
    """Whether a key of a layer is that of a block of its array, not one for its other tasks."""
    if not isinstance(key, tuple) or key[0] != name:
        return False
    if not all(isinstance(each, int) for each in key[1:]):
        return False
    return node is None or len(key) == 1 + node.ndim


def _joins(task: GraphNode) -> bool:
    return isinstance(task, Alias) or unwrapped(getattr(task, "func", None)) not in OUTSIDE


def _creates(task: GraphNode) -> bool:
    if not isinstance(task, Task):
        return False
    function = unwrapped(task.args[0] if task.func is apply else task.func)
    return function in CREATORS or getattr(function, "__module__", None) in CREATING_MODULES


def calls_others(layer: Layer) -> bool:
    """Whether a layer calls functions of users, not only those of Dask and NumPy.

    They may be slow, or return something else at each call.
    """
    tasks = (layer.task,) if isinstance(layer, Blockwise) else layer.values()
    return not all(map(is_known, chain.from_iterable(map(_functions, tasks))))


def _calls_only(packages: Collection[str], graph: ArrayGraph, name: str) -> bool:
    """Whether a layer calls functions of these packages only."""
    layer = graph.layers[name]
    own = tasks_of(graph, name)
    tasks = (layer.task,) if isinstance(layer, Blockwise) else (task for _, task in own)
    inside = tuple(f"{each}." for each in packages)
    functions = chain.from_iterable(map(_functions, tasks))
    called = (getattr(unwrapped(function), "__module__", "") for function in functions)
    return all(f"{module}.".startswith(inside) for module in called)


def _functions(task: Any) -> Iterator[Any]:
    """Yield the functions that a task calls, including those of fused tasks and arguments."""
    if isinstance(task, Task) and isinstance(task.func, Together):
        for each in task.func.tasks:
            yield from _functions(each)
    elif isinstance(task, Task):
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


def is_known(function: Any) -> bool:
    """Whether a function is of a package whose functions do nothing but return a block."""
    module = str(getattr(unwrapped(function), "__module__", None))
    return module.partition(".")[0] in PACKAGES
