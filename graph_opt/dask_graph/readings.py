"""Read layers of Dask's as nodes of an expression on blocks.

A :class:`Reading` says from which block of each operand a block of a layer is computed, and how.
A layer of anything else than known functions of NumPy has no reading, and stays as it is.

A :class:`Cut` is a layer whose blocks are slices of blocks: its readers can take the slices::

    x  ->  x[:, 1:]   ->  sub  ->  mul        three tasks a block
    x  ->  x[:, :-1]  --> sub
    x  ----------------------->  sub, mul     one task a block, which reads views of its block

A reduction along axes of one block is one reading, of chunk function and aggregate::

    x  ->  mean_chunk  ->  mean_agg            three layers, one task a block in each
    x  ->  Reduce("mean")                      if the axis has one block
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer

from graph_opt.dask_graph.calls import (
    Aggregate,
    Chunked,
    Nodes,
    Operand,
    read_aggregate,
    read_arg_chunk,
    read_call,
    read_chunk,
)
from graph_opt.dask_graph.internals import (
    Alias,
    DataNode,
    GraphNode,
    List,
    Task,
    TaskRef,
    blockwise_token,
    convert_legacy_graph,
    getitem,
    methodcaller,
)
from graph_opt.dask_graph.parse import DTYPES, ArrayGraph, once, value_of
from graph_opt.model.expression import View
from graph_opt.model.layout import CONTAINERS, ArrayNode, Index

Axes = tuple[int | None, ...]

PLACE = "place"
"""In the tasks of a reading: what Dask tells the function of the place of its block."""


@dataclass(frozen=True)
class Source:
    """An operand of a layer: each of its axes is an axis of the result, or has one block.

    ``grid`` are its numbers of blocks.
    """

    name: str
    axes: Axes
    grid: tuple[int, ...]


Adding = Callable[[Nodes, Sequence[Operand]], int | None]
"""Adds the work of a layer to an expression; the number of the result, ``None`` if unknown."""


@dataclass(frozen=True)
class Reading:
    """How each block of a layer is computed from one block of each source.

    ``layers`` are replaced together; the last is the result. ``tasks`` are Dask's own for one
    block, with the numbers of sources for their blocks. If the result is not an array, but what
    Dask's aggregate of several blocks reads, ``chunked`` says what it is. ``places`` are facts
    about the blocks, by their numbers: where ``argmin`` counts from. A result that ``views`` a
    block takes no kernel.
    """

    layers: tuple[str, ...]
    sources: tuple[Source, ...]
    tasks: Mapping[str, GraphNode]
    add: Adding
    chunked: Chunked | None = None
    places: Mapping[Index, Any] | None = None
    views: bool = False

    def number(self, nodes: Nodes, operands: Sequence[Operand]) -> int:
        """Add the work to an expression; return the number of the result."""
        number = self.add(nodes, operands)
        if number is None:
            raise ValueError(f"expected a known function in {self.layers[-1]}")
        return number


def usable(arrays: ArrayGraph, name: str) -> ArrayNode | None:
    """Return an array if its blocks are of numbers, and NumPy's or CuPy's."""
    node = arrays.node(name)
    known = node is not None and node.dtype in DTYPES and node.container in CONTAINERS
    return node if known else None


@dataclass(frozen=True)
class Place:
    """An argument of a call: the block of a source, by its number."""

    at: int


@dataclass(frozen=True)
class FunctionCall:
    """A call of an elementwise function of blocks and scalars."""

    function: Any
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]

    def __call__(self, nodes: Nodes, operands: Sequence[Operand]) -> int | None:
        """Add the call."""
        given = [
            operands[argument.at] if isinstance(argument, Place) else argument
            for argument in self.arguments
        ]
        return read_call(nodes, self.function, given, self.options)


@dataclass(frozen=True)
class Viewed:
    """A view of the only source."""

    axes: Axes

    def __call__(self, nodes: Nodes, operands: Sequence[Operand]) -> int:
        """Add the view."""
        return nodes.add(View(operands[0].node, self.axes))


@once
def read_blockwise(arrays: ArrayGraph, name: str) -> Reading | None:
    """Read the call of a function of blocks: elementwise, or the first step of a reduction."""
    layer = arrays.layers[name]
    if not isinstance(layer, Blockwise) or type(layer.task) is not Task:
        return None
    task = layer.task
    if layer.io_deps or layer.new_axes or layer.concatenate:
        return None
    axes = {letter: i for i, letter in enumerate(layer.output_indices)}
    sources: list[Source] = []
    values: dict[str, Any] = {}
    for i, (operand, index) in enumerate(layer.indices):
        if index is None:
            values[blockwise_token(i)] = value_of(operand)
        elif isinstance(operand, str) and axes.keys() >= set(index):
            values[blockwise_token(i)] = Place(len(sources))
            grid = tuple(layer.numblocks[operand])
            sources.append(Source(operand, tuple(axes[letter] for letter in index), grid))
        else:
            return None
    operands = _operands(arrays, sources)
    given = [values.get(a.key, a) if isinstance(a, TaskRef) else value_of(a) for a in task.args]
    options = {name: value_of(option) for name, option in task.kwargs.items()}
    if not operands or any(isinstance(a, GraphNode | TaskRef) for a in (*given, *options.values())):
        return None
    nodes: dict[Any, Any] = {
        token: TaskRef(value.at) if isinstance(value, Place) else DataNode(None, value)
        for token, value in values.items()
    }
    tasks = {name: task.substitute(nodes, name)}
    call, tried = FunctionCall(task.func, tuple(given), options), Nodes()
    number = call(tried, operands) if usable(arrays, name) else None
    if number is not None:
        views = isinstance(tried.nodes[number], View)
        return Reading((name,), tuple(sources), tasks, call, views=views)
    chunked = read_chunk(task.func, options, operands[0]) if given == [Place(0)] else None
    return Reading((name,), tuple(sources), tasks, call, chunked) if chunked else None


def _operands(arrays: ArrayGraph, sources: Sequence[Source]) -> list[Operand] | None:
    """Return the sources as operands, to try a call; ``None`` if one is not usable."""
    nodes = [node for source in sources if (node := usable(arrays, source.name)) is not None]
    if len(nodes) < len(sources):
        return None
    return [Operand.of(node, i) for i, node in enumerate(nodes)]


def read_view(arrays: ArrayGraph, name: str, layer: MaterializedLayer) -> Reading | None:
    """Read ``x[:, None]``, ``expand_dims`` and ``squeeze``, which add and drop axes of length 1."""
    task: Any = next(iter(layer.mapping.values()), None)
    first = _source_key(task)
    other = first[0] if isinstance(first, tuple) else ""
    read, made = usable(arrays, other), usable(arrays, name)
    if read is None or made is None:
        return None
    index = _index(task, read.chunks) if task.func is getitem else _inserted(read, made)
    if index is None:
        return None
    axes: list[int | None] = []
    kept: list[int | None] = []  # the axis of the result, for each axis of the source
    for each in index:
        if each is not None:
            kept.append(None if each == 0 else len(axes))
        if each != 0:
            axes.append(None if each is None else len(kept) - 1)
    for key, task in layer.mapping.items():
        place = tuple(0 if axis is None else key[1:][axis] for axis in kept)
        if _source_key(task) != (other, *place) or not _is_view(task, index, made, key[1:]):
            return None
    tasks = {name: Task(name, getitem, TaskRef(0), index)}
    return Reading((name,), (Source(other, tuple(kept), read.grid),), tasks, Viewed(tuple(axes)))


def _source_key(task: Any) -> Any:
    """Return the key of the only block that a call of two arguments reads."""
    known = type(task) is Task and len(task.args) == 2 and not task.kwargs
    return task.args[0].key if known and isinstance(task.args[0], TaskRef) else None


def _is_view(task: Any, index: tuple[Any, ...], made: ArrayNode, place: Index) -> bool:
    """Whether a task applies an index, or a reshape with the same result."""
    given = value_of(task.args[1])
    if task.func is getitem:
        return bool(given == index)
    reshapes = type(task.func) is methodcaller and task.func.method == "reshape"
    return reshapes and given == made.block_shape(place)


def _index(task: Any, chunks: Sequence[tuple[int, ...]]) -> tuple[Any, ...] | None:
    """Return an index of whole axes, new ones, and 0 for axes of length 1."""
    index = value_of(task.args[1])
    if not isinstance(index, tuple):
        return None
    taken = [each for each in index if each is not None]
    whole = slice(None)
    known = len(taken) == len(chunks) and all(
        (isinstance(each, slice) and each == whole)
        or (type(each) is int and each == 0 and sizes == (1,))
        for each, sizes in zip(taken, chunks, strict=True)
    )
    return index if known else None


def _inserted(read: ArrayNode, made: ArrayNode) -> tuple[Any, ...] | None:
    """Return the index that inserts axes of length 1, if that is all that one array differs by."""
    index: list[Any] = []
    waiting = list(read.chunks)
    for sizes in made.chunks:
        if waiting and sizes == waiting[0]:
            index.append(slice(None))
            waiting.pop(0)
        elif sizes == (1,):
            index.append(None)
        else:
            return None
    return None if waiting else tuple(index)


Steps = tuple[tuple[Any, ...], ...]
"""Basic indices, to apply one after the other."""


@dataclass(frozen=True)
class Cut:
    """The blocks of an array, each a slice of one block of the array ``source``.

    ``blocks`` has for each block that of the source, and how it is cut.
    """

    source: str
    blocks: Mapping[Index, tuple[Index, Steps]]

    @property
    def places(self) -> dict[Index, Index]:
        """The block of the source for each block."""
        return {index: place for index, (place, _) in self.blocks.items()}

    def axes(self, source: Sequence[int], own: Sequence[int]) -> Axes | None:
        """Return the axis with the same block number for each axis of the source.

        ``None`` is an axis of one block, or all of it if there are no such axes. The arguments are
        the numbers of blocks.
        """
        axes: list[int | None] = []
        for axis, count in enumerate(source):
            if count == 1:
                axes.append(None)
                continue
            for own_axis, own_count in enumerate(own):
                if own_count == count and all(
                    place[axis] == index[own_axis] for index, (place, _) in self.blocks.items()
                ):
                    axes.append(own_axis)
                    break
            else:
                return None
        return tuple(axes)

    def is_thin(self, source: ArrayNode, own: ArrayNode) -> bool:
        """Whether a slice has less than half of its block: then Dask copies it."""
        return any(
            2 * math.prod(own.block_shape(index)) < math.prod(source.block_shape(place))
            for index, (place, _) in self.blocks.items()
        )


@once
def read_cut(arrays: ArrayGraph, name: str) -> Cut | None:
    """Read a layer of basic slices, each of one block of one other array."""
    layer, needed = arrays.layers[name], arrays.dependencies[name]
    if type(layer) is not MaterializedLayer or len(needed) != 1:
        return None
    (other,) = needed
    node, source = usable(arrays, name), usable(arrays, other)
    if node is None or source is None or not (node.known and source.known):
        return None
    blocks = {}
    for index in node.indices:
        axes = _followed(layer.mapping, (name, *index), other)
        if axes is None:
            return None
        blocks[index] = axes
    return Cut(other, blocks)


def _followed(mapping: Mapping[Any, Any], key: Any, other: str) -> tuple[Index, Steps] | None:
    """Follow slices and aliases within a layer back to a block of another array."""
    steps: list[tuple[Any, ...]] = []
    while key in mapping:
        task = mapping[key]
        if isinstance(task, Alias):
            key = task.target
            continue
        if type(task) is not Task or task.func is not getitem or task.kwargs:
            return None
        block, index = task.args
        index = value_of(index)
        if not isinstance(block, TaskRef) or not _is_basic(index):
            return None
        key, steps = block.key, [index, *steps]
    return (key[1:], tuple(steps)) if isinstance(key, tuple) and key[0] == other else None


def _is_basic(index: Any) -> bool:
    return isinstance(index, tuple) and all(
        each is None or type(each) in (int, slice) for each in index
    )


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
