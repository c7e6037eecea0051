"""Read layers of Dask's as nodes of an expression on blocks.

A :class:`Reading` says from which block of each operand a block of a layer is computed, and how.
A layer of anything else than known functions of NumPy has no reading, and stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dask.blockwise import Blockwise
from dask.highlevelgraph import MaterializedLayer

from graph_opt.dask_graph.elementwise import read_call
from graph_opt.dask_graph.internals import (
    DataNode,
    GraphNode,
    Task,
    TaskRef,
    blockwise_token,
    getitem,
    methodcaller,
)
from graph_opt.dask_graph.nodes import Nodes, Operand
from graph_opt.dask_graph.parse import DTYPES, ArrayGraph, once
from graph_opt.dask_graph.reductions import Chunked, read_chunk
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


class Adding(Protocol):
    """Adds the work of a layer to an expression."""

    def __call__(self, nodes: Nodes, operands: Sequence[Operand]) -> int | None:
        """Return the number of the result, ``None`` if something is unknown."""


@dataclass(frozen=True)
class Reading:
    """How each block of a layer is computed from one block of each source.

    ``layers`` are replaced together; the last is the result. ``tasks`` are Dask's own for one
    block, with the numbers of sources for their blocks. If the result is not an array, but what
    Dask's aggregate of several blocks reads, ``chunked`` says what it is. ``places`` are facts
    about the blocks, by their numbers: where ``argmin`` counts from.
    """

    layers: tuple[str, ...]
    sources: tuple[Source, ...]
    tasks: Mapping[str, GraphNode]
    add: Adding
    chunked: Chunked | None = None
    places: Mapping[Index, Any] | None = None

    def number(self, nodes: Nodes, operands: Sequence[Operand]) -> int:
        """Add the work to an expression; return the number of the result."""
        found = self.add(nodes, operands)
        if found is None:
            raise ValueError(f"expected a known function in {self.layers[-1]}")
        return found


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
class Call:
    """A call of an elementwise function of blocks and scalars."""

    function: Any
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]

    def __call__(self, nodes: Nodes, operands: Sequence[Operand]) -> int | None:
        """Add the call."""
        given = [operands[each.at] if isinstance(each, Place) else each for each in self.arguments]
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
    axes = {letter: at for at, letter in enumerate(layer.output_indices)}
    sources: list[Source] = []
    values: dict[str, Any] = {}
    for at, (operand, index) in enumerate(layer.indices):
        if index is None:
            values[blockwise_token(at)] = _value(operand)
        elif isinstance(operand, str) and axes.keys() >= set(index):
            values[blockwise_token(at)] = Place(len(sources))
            grid = tuple(layer.numblocks[operand])
            sources.append(Source(operand, tuple(axes[letter] for letter in index), grid))
        else:
            return None
    operands = _operands(arrays, sources)
    given = [values.get(a.key, a) if isinstance(a, TaskRef) else _value(a) for a in task.args]
    options = {name: _value(option) for name, option in task.kwargs.items()}
    if not operands or any(isinstance(a, GraphNode | TaskRef) for a in (*given, *options.values())):
        return None
    nodes: dict[Any, Any] = {
        token: TaskRef(value.at) if isinstance(value, Place) else DataNode(None, value)
        for token, value in values.items()
    }
    tasks = {name: task.substitute(nodes, name)}
    call = Call(task.func, tuple(given), options)
    if usable(arrays, name) and call(Nodes(), operands) is not None:
        return Reading((name,), tuple(sources), tasks, call)
    chunked = read_chunk(task.func, options, operands[0]) if given == [Place(0)] else None
    return Reading((name,), tuple(sources), tasks, call, chunked) if chunked else None


def _value(argument: Any) -> Any:
    return argument.value if isinstance(argument, DataNode) else argument


def _operands(arrays: ArrayGraph, sources: Sequence[Source]) -> list[Operand] | None:
    """Return the sources as operands, to try a call; ``None`` if one is not usable."""
    nodes = [usable(arrays, source.name) for source in sources]
    if any(node is None for node in nodes):
        return None
    return [Operand.of(node, at) for at, node in enumerate(nodes)]


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
    given = _value(task.args[1])
    if task.func is getitem:
        return bool(given == index)
    reshapes = type(task.func) is methodcaller and task.func.method == "reshape"
    return reshapes and given == made.block_shape(place)


def _index(task: Any, chunks: Sequence[tuple[int, ...]]) -> tuple[Any, ...] | None:
    """Return an index of whole axes, new ones, and 0 for axes of length 1."""
    index = _value(task.args[1])
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
