"""Reductions of Dask's along axes of one block: chunk function and aggregate as one reduction.

::

    x  ->  mean_chunk  ->  mean_agg            three layers, one task a block in each
    x  ->  Reduce("mean")                      if the axis has one block
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer

from graph_opt.dask_graph.expressions import PLACE, Reading, Source, read_blockwise, usable
from graph_opt.dask_graph.internals import (
    DataNode,
    GraphNode,
    List,
    Task,
    TaskRef,
    convert_legacy_graph,
)
from graph_opt.dask_graph.nodes import Nodes, Operand
from graph_opt.dask_graph.parse import ArrayGraph
from graph_opt.dask_graph.reductions import Aggregate, Chunked, read_aggregate, read_arg_chunk

Key = tuple[Any, ...]


@dataclass(frozen=True)
class Whole:
    """A whole reduction of the block of the only source."""

    chunked: Chunked
    aggregate: Aggregate

    def __call__(self, nodes: Nodes, operands: Sequence[Operand]) -> int:
        """Add the reduction."""
        return self.chunked.whole(nodes, operands[0], self.aggregate)


def read_aggregated(
    graph: HighLevelGraph, arrays: ArrayGraph, name: str, layer: MaterializedLayer
) -> Reading | None:
    """Read a layer of aggregates of one block each, with the chunk functions before them."""
    (other,) = graph.dependencies[name]
    made, read = usable(arrays, name), arrays.node(other)
    if made is None or (read is not None and made.blocks != read.blocks):  # it joins blocks
        return None
    chunks = _chunks(graph, arrays, other)
    first = next(_calls(layer), None)
    if chunks is None or chunks.chunked is None or first is None:
        return None
    (source,), chunked = chunks.sources, chunks.chunked
    aggregate = read_aggregate(first[1], chunked)
    if aggregate is None or any(source.grid[axis] != 1 for axis in chunked.axes):
        return None
    kept = [a for a in range(len(source.grid)) if aggregate.keepdims or a not in chunked.axes]
    for index, function, arguments in _calls(layer):
        places = dict(zip(kept, index, strict=False))
        key = (other, *(places.get(axis, 0) for axis in range(len(source.grid))))
        if function is not first[1] or arguments != (key,) or len(index) != len(kept):
            return None
    axes = tuple(kept.index(axis) if axis in kept else None for axis in range(len(source.grid)))
    tasks = {**chunks.tasks, name: _aggregate_task(name, layer, other)}
    if chunks.places is not None:  # all are alike along reduced axes of one block
        place = DataNode(None, next(iter(chunks.places.values())))
        tasks[other] = tasks[other].substitute({PLACE: place}, other)
    return Reading(
        (other, name),
        (Source(source.name, axes, source.grid),),
        tasks,
        Whole(chunked, aggregate),
    )


def _chunks(graph: HighLevelGraph, arrays: ArrayGraph, name: str) -> Reading | None:
    """Read the chunk functions that an aggregate reads."""
    layer = graph.layers[name]
    if layer is not arrays.layers.get(name):
        return None
    if isinstance(layer, Blockwise):
        return read_blockwise(arrays, name)
    if type(layer) is not MaterializedLayer or len(graph.dependencies[name]) != 1:
        return None
    return read_arg_chunks(graph, arrays, name, layer)


def read_arg_chunks(
    graph: HighLevelGraph, arrays: ArrayGraph, name: str, layer: MaterializedLayer
) -> Reading | None:
    """Read the chunk functions of ``argmin`` and the like; each knows the place of its block."""
    (other,) = graph.dependencies[name]
    node, first = usable(arrays, other), next(_calls(layer), None)
    if node is None or first is None or len(first[2]) != 3:
        return None
    _, function, (_, axis, _) = first
    chunked = read_arg_chunk(function, axis, node)
    if chunked is None or (len(chunked.axes) > 1 and math.isnan(math.prod(node.shape))):
        return None
    places = {}
    for index, called, arguments in _calls(layer):
        if called is not function or arguments[:2] != ((other, *index), axis):
            return None
        places[index] = arguments[2]
    tasks = {name: Task(name, function, TaskRef(0), axis, TaskRef(PLACE))}
    source = Source(other, tuple(range(node.ndim)), node.grid)
    whole = Whole(chunked, Aggregate(True))
    return Reading((name,), (source,), tasks, whole, chunked, places)


def _calls(layer: Layer) -> Iterator[tuple[tuple[int, ...], Any, tuple[Any, ...]]]:
    """Yield the index of each block, its function and arguments; keys instead of references.

    Lists of one element, around keys, are left out.
    """
    for key, task in layer.mapping.items() if isinstance(layer, MaterializedLayer) else ():
        if isinstance(task, Task) and not task.kwargs:
            yield key[1:], task.func, tuple(map(_bare, task.args))
        elif isinstance(task, tuple) and callable(task[0]):
            yield key[1:], task[0], tuple(map(_bare, task[1:]))
        else:
            yield key[1:], None, ()


def _bare(argument: Any) -> Any:
    while isinstance(argument, list | List) and len(list(argument)) == 1:
        (argument,) = argument
    return argument.key if isinstance(argument, TaskRef) else argument


def _aggregate_task(name: str, layer: MaterializedLayer, other: str) -> GraphNode:
    """Return an aggregate's task, with the name of the layer before it for its block."""
    key, task = next(iter(layer.mapping.items()))
    if not isinstance(task, GraphNode):
        (_, _, arguments) = next(_calls(layer))
        task = convert_legacy_graph({key: task}, all_keys={key, *arguments})[key]
    return task.substitute(dict.fromkeys(task.dependencies, other), name)
