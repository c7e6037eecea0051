"""Layers that become one layer: one expression on each block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dask.blockwise import Blockwise
from dask.highlevelgraph import Layer, MaterializedLayer

from graph_opt.dask_graph.expressions import PLACE, Axes, Reading, Source
from graph_opt.dask_graph.internals import (
    BlockwiseDepDict,
    GraphNode,
    Task,
    TaskRef,
    blockwise_token,
)
from graph_opt.dask_graph.nodes import Nodes, Operand
from graph_opt.dask_graph.parse import ArrayGraph
from graph_opt.dask_graph.recipes import without_names
from graph_opt.dask_graph.reductions import Chunked
from graph_opt.dask_graph.slices import Cut, Steps
from graph_opt.model.expression import Expression, Input
from graph_opt.model.layout import ArrayNode, Index

Grid = tuple[int, ...]


@dataclass(frozen=True)
class Fusion:
    """The work of several layers on one block each.

    ``dtypes`` are those of the inputs, as declared. ``tasks`` are Dask's own, for blocks that are
    of another dtype or type, and ``result`` is the key of the last; in these the inputs have their
    numbers as keys, and nothing has a name. If the last work is
    the first step of a reduction over several blocks, this is ``chunked``, and ``reduced`` the
    number of the node that it reduces. A call for ``argmin`` and the like has the place of the
    block after the inputs, with the next number. If ``cut``, a call has last how each input is cut.
    """

    expression: Expression
    dtypes: tuple[str, ...]
    tasks: Mapping[Any, GraphNode]
    result: Any
    chunked: Chunked | None = None
    reduced: int = 0
    cut: bool = False


Calls = Callable[[Fusion], Callable[..., Any]]


@dataclass
class Cluster:
    """Layers that become one, by the names of their results, the last one first.

    For each there is its reading, and for each of its axes the axis of the last result with the
    same block number; ``None`` is an axis of one block. ``inputs`` are other arrays with such
    axes, and their numbers of blocks. ``cuts`` are inputs that are slices of blocks: the cluster
    reads these blocks. ``layers`` are all that are replaced.
    """

    members: dict[str, tuple[Reading, Axes]] = field(default_factory=dict)
    inputs: dict[tuple[str, Axes], Grid] = field(default_factory=dict)
    cuts: dict[str, Cut] = field(default_factory=dict)
    layers: set[str] = field(default_factory=set)

    @property
    def last(self) -> str:
        """The name of the last result."""
        return next(iter(self.members))

    @property
    def ndim(self) -> int:
        """The number of axes of the last result."""
        return len(self.members[self.last][1])

    def inner(self, name: str, source: Source) -> Axes:
        """Return the axes of a member's source within the last result."""
        axes = self.members[name][1]
        return tuple(
            None if axis is None or blocks == 1 else axes[axis]
            for axis, blocks in zip(source.axes, source.grid, strict=True)
        )

    def reads(self) -> Iterator[str]:
        """Yield the name of the array that each input's blocks come from."""
        for name, _ in self.inputs:
            yield self.cuts[name].source if name in self.cuts else name

    def uncut(self, name: str, axes: Axes, arrays: ArrayGraph) -> tuple[str, Axes, Grid] | None:
        """Return an input's array, axes and numbers of blocks before it is cut.

        ``None`` if block numbers differ along an axis.
        """
        grid = self.inputs[name, axes]
        if name not in self.cuts:
            return name, axes, grid
        cut = self.cuts[name]
        source = node_of(arrays, cut.source).grid
        along = cut.axes(source, grid)
        if along is None:
            return None
        return cut.source, tuple(None if axis is None else axes[axis] for axis in along), source


def node_of(arrays: ArrayGraph, name: str) -> ArrayNode:
    """Return an array that Dask declares."""
    node = arrays.node(name)
    if node is None:
        raise LookupError(f"expected a declaration of the array {name}, got none")
    return node


def layer_of(cluster: Cluster, last: Layer, arrays: ArrayGraph, calls: Calls) -> Layer:
    """Return the layer of a cluster that replaces the layer ``last``."""
    indices: list[tuple[Any, tuple[str, ...] | None]] = []
    numblocks: dict[str, Grid] = {}
    moved: dict[str, Cut] = {}
    for name, axes in cluster.inputs:
        uncut = cluster.uncut(name, axes, arrays)
        if uncut is None:
            moved[name] = cluster.cuts[name]
        read, own, blocks = uncut or (name, axes, cluster.inputs[name, axes])
        # an axis of one block may have any letter that the index does not have yet
        free = (axis for axis in range(cluster.ndim + len(own)) if axis not in own)
        numbers = (next(free) if axis is None else axis for axis in own)
        indices.append((read, tuple(f".{number}" for number in numbers)))
        numblocks[read] = blocks
    letters = tuple(f".{axis}" for axis in range(cluster.ndim))
    covered = {letter for _, index in indices for letter in index or ()}
    reading, _ = cluster.members[cluster.last]
    if reading.places is not None:
        places = BlockwiseDepDict(dict(reading.places), reading.sources[0].grid)
        indices.append((places, letters))
    if cluster.cuts:
        indices.append(_steps(cluster, node_of(arrays, cluster.last), letters))
    tokens = [TaskRef(blockwise_token(at)) for at in range(len(indices))]
    layer: Layer = Blockwise(
        cluster.last,
        letters,
        Task(cluster.last, calls(_fusion(cluster, arrays)), *tokens),
        indices,
        numblocks=numblocks,
        new_axes={letter: 1 for letter in letters if letter not in covered},
        annotations=last.annotations,
    )
    if moved:
        layer = MaterializedLayer(_moved(layer, moved), annotations=last.annotations)
    layer.collection_annotations = last.collection_annotations
    return layer


def _steps(
    cluster: Cluster, node: ArrayNode, letters: tuple[str, ...]
) -> tuple[Any, tuple[str, ...] | None]:
    """Return how the inputs of each block are cut, as an operand and its index."""
    found: dict[Index, tuple[Steps, ...]] = {}
    for index in node.indices:
        steps = []
        for name, axes in cluster.inputs:
            place = tuple(0 if axis is None else index[axis] for axis in axes)
            steps.append(cluster.cuts[name].blocks[place][1] if name in cluster.cuts else ())
        found[index] = tuple(steps)
    first = next(iter(found.values()))
    if all(each == first for each in found.values()):
        return first, None
    return BlockwiseDepDict(found, node.grid), letters


def _moved(layer: Layer, cuts: Mapping[str, Cut]) -> dict[Any, GraphNode]:
    """Return the tasks of a layer with the blocks that some slices come from instead of these."""
    tasks: dict[Any, GraphNode] = {}
    for key, task in layer.items():
        read = {each: cuts[each[0]] for each in task.dependencies if each[0] in cuts}
        sources = {each: (cut.source, *cut.blocks[each[1:]][0]) for each, cut in read.items()}
        tasks[key] = task.substitute(sources, key)
    return tasks


def _fusion(cluster: Cluster, arrays: ArrayGraph) -> Fusion:
    """Return the work of a cluster as one expression."""
    nodes = Nodes()
    keys: dict[Any, Any] = {key: at for at, key in enumerate(cluster.inputs)}
    numbers = {at: nodes.add(Input(at)) for at in keys.values()}
    tasks: dict[Any, GraphNode] = {}
    results: tuple[int, ...] = ()
    chunked, reduced = None, 0
    for name, (reading, _) in reversed(cluster.members.items()):
        read = [keys.get((s.name, cluster.inner(name, s)), s.name) for s in reading.sources]
        operands = [
            Operand.of(arrays.node(source.name), numbers[key])
            for source, key in zip(reading.sources, read, strict=True)
        ]
        own: dict[Any, Any] = {**dict(enumerate(read)), PLACE: len(cluster.inputs)}
        tasks |= {each: task.substitute(own, each) for each, task in reading.tasks.items()}
        chunked, reduced = reading.chunked, operands[0].node
        if chunked is not None:
            results = chunked.parts(nodes, operands[0])
        else:
            results = (reading.number(nodes, operands),)
            (numbers[name],) = results
    declared = tuple(node_of(arrays, name).dtype for name, _ in cluster.inputs)
    expression = Expression(tuple(nodes.nodes), results)
    cut = bool(cluster.cuts)
    own, names = without_names(tasks, range(len(declared) + 1))
    return Fusion(expression, declared, own, names[cluster.last], chunked, reduced, cut)
