"""Which of Dask's own layers a gang can carry out itself, block by block."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

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
from graph_opt.dask_graph.parse import ArrayGraph
from graph_opt.dask_graph.pattern import CARRIED, unsupported, unwrapped
from graph_opt.dask_graph.piece_layer import PieceLayer

OUTSIDE = (getter, getter_nofancy, getter_inline, load_store_chunk)
"""Functions that read or write a file, or an array in memory."""

CONTRACTIONS = (_matmul, _tensordot, chunk_einsum)
"""Functions that multiply blocks whose sums come after; a rule's, or Dask's alone."""

MODULES = (
    "numpy",
    "cupy",
    "dask",
    "dask_dgpu",
    "operator",
    "_operator",
    "builtins",
    "toolz",
    "cytoolz",
)
"""Where the functions are that Dask itself, or our sums, call in layers that are not blockwise."""

CREATES = (
    unwrapped(_broadcast_trick_inner),
    _apply_random,
    _apply_random_func,
)
"""Functions that make a block out of nothing, wherever they are called."""

CREATING_MODULES = ("numpy", "cupy", "dask.array.chunk")
"""Where such functions as ``arange``, ``linspace`` and ``eye`` are."""

DEPENDENCIES = ("ArrayBlockIdDep", "ArrayValuesDep", "ArrayChunkShapeDep")
"""What a blockwise layer may read beside arrays: facts of each block."""

Tasks = dict[Any, GraphNode]


def members(arrays: ArrayGraph, graph: HighLevelGraph) -> set[str]:
    """Return the layers of a graph that a gang can carry out without a collective.

    ``arrays`` are the layers as Dask made them: those that are no longer in the graph are
    part of others.
    """
    return {
        name
        for name, layer in graph.layers.items()
        if name in arrays.layers and not isinstance(layer, PieceLayer) and is_member(arrays, name)
    }


def fuse(graph: HighLevelGraph, local: Collection[str], keys: Collection[Any]) -> HighLevelGraph:
    """Fuse blockwise layers as Dask does, but none of those of a gang with one that is not.

    Parameters
    ----------
    graph : HighLevelGraph
        Layers of any kind.
    local : collection of str
        Those that a gang can carry out.
    keys : collection of key
        Blocks that somebody asked for.
    """
    borders = {
        other
        for name, needed in graph.dependencies.items()
        for other in needed
        if (name in local) != (other in local)
    }
    return optimize_blockwise(graph, keys=[*keys, *((name,) for name in borders)])


def is_member(graph: ArrayGraph, name: str) -> bool:
    """Whether a gang can carry out the layer ``name``.

    It can if each block is made from whole blocks of arrays: elementwise work, slices,
    transposes, reductions, arrays joined to larger ones, and whatever a user maps over
    blocks; and creation, by functions that read nothing. What reads files, depends on
    anything but arrays, or has tasks that depend on each other, stays with Dask.
    """
    layer, node = graph.layers[name], graph.node(name)
    if node is None or unsupported((node,), node, CARRIED) is not None:
        return False
    needed = graph.dependencies[name]
    if not all(_is_array(graph, other) for other in needed):
        return False
    if isinstance(layer, Blockwise):
        function = unwrapped(getattr(layer.task, "func", None))
        kinds = {type(dependency).__name__ for dependency in layer.io_deps.values()}
        if function in (*OUTSIDE, *CONTRACTIONS) or not kinds <= set(DEPENDENCIES):
            return False
        return bool(needed) or function in CREATES
    return isinstance(layer, MaterializedLayer) and _is_blockwork(graph, name)


def tasks_of(graph: ArrayGraph, name: str) -> Tasks:
    """Return the tasks of a layer, those of the old form converted."""
    return dict(_converted(graph, name))


def _converted(graph: ArrayGraph, name: str) -> Iterator[tuple[Any, GraphNode]]:
    """Yield the tasks of a layer; those of the old form are converted when their turn comes."""
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


def _is_array(graph: ArrayGraph, name: str) -> bool:
    node = graph.node(name)
    return node is not None and unsupported((node,), node, CARRIED) is None


def _is_blockwork(graph: ArrayGraph, name: str) -> bool:
    """Whether all tasks of a layer make blocks of one array from those of others.

    What a task reads may be a future too, which has no layer.
    """
    needed = graph.dependencies[name]
    found = False
    for key, task in _converted(graph, name):
        if not isinstance(key, tuple) or key[0] != name or isinstance(task, DataNode):
            return False
        if not all(isinstance(each, tuple) and each[0] in needed for each in task.dependencies):
            return False
        if not (_joins(task) if task.dependencies else _creates(task)):
            return False
        found = True
    return found


def _joins(task: GraphNode) -> bool:
    function = unwrapped(getattr(task, "func", None))
    return isinstance(task, Alias) or (_is_known(function) and function not in OUTSIDE)


def _creates(task: GraphNode) -> bool:
    if isinstance(task, Alias) or not isinstance(task, Task):
        return False
    function = unwrapped(task.func)
    module = getattr(function, "__module__", None) or ""
    return function in CREATES or module in CREATING_MODULES


def calls_others(layer: Layer) -> bool:
    """Whether a layer calls functions that are neither Dask's nor NumPy's, but a user's.

    These may take long, or give something else at each call.
    """
    return isinstance(layer, Blockwise) and not all(map(_is_known, _functions(layer.task)))


def _functions(task: Any) -> Iterator[Any]:
    """Yield the functions that a task calls, those of fused tasks and arguments included."""
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
    package = str(getattr(unwrapped(function), "__module__", None) or "").partition(".")[0]
    return package in MODULES
