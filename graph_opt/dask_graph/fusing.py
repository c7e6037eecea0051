"""Replace layers of elementwise work and reductions by one layer: one expression on each block.

::

    x ----> max              softmax along rows of one block: five layers of Dask's,
    |        v               two of them for each reduction, become one
    +-----> sub -> exp -> sum
                    |      v
                    +-> truediv

Dask fuses blockwise layers too, but its tasks call one function after another, and it stops at
reductions and at arrays with several readers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dask.blockwise import Blockwise
from dask.core import reverse_dict
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer

from graph_opt.dask_graph.calls import Chunked, Nodes, Operand
from graph_opt.dask_graph.gathering import Chain
from graph_opt.dask_graph.internals import (
    BlockwiseDepDict,
    GraphNode,
    Task,
    TaskRef,
    blockwise_token,
)
from graph_opt.dask_graph.parse import ArrayGraph
from graph_opt.dask_graph.readings import (
    PLACE,
    Axes,
    Cut,
    Reading,
    Source,
    Steps,
    Viewed,
    Whole,
    read_aggregated,
    read_arg_chunks,
    read_blockwise,
    read_cut,
    read_view,
)
from graph_opt.model.expression import Expression, Input
from graph_opt.model.layout import CUPY, ArrayNode, Index
from graph_opt.passes import by_name, depth_first

Grid = tuple[int, ...]


@dataclass(frozen=True)
class Fusion:
    """The work of several layers on one block each.

    ``dtypes`` are those of the inputs, as declared. ``chain`` are Dask's own tasks, for blocks that
    are of another dtype or type, called with the inputs and the place of the block. If the last
    work is the first step of a reduction over several blocks, this is ``chunked``, and ``reduced``
    the number of the node that it reduces. A call for ``argmin`` and the like has the place of the
    block after the inputs. If ``cut``, a call has last how each input is cut.
    """

    expression: Expression
    dtypes: tuple[str, ...]
    chain: Chain
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

    def uncut(self, name: str, axes: Axes, arrays: ArrayGraph) -> tuple[str, Axes, Grid]:
        """Return an input's array, axes and numbers of blocks before it is cut."""
        grid = self.inputs[name, axes]
        if name not in self.cuts:
            return name, axes, grid
        cut = self.cuts[name]
        source = arrays.declared(cut.source).grid
        along = cut.axes(source, grid) or ()
        return cut.source, tuple(None if axis is None else axes[axis] for axis in along), source


def layer_of(cluster: Cluster, last: Layer, arrays: ArrayGraph, calls: Calls) -> Layer:
    """Return the layer of a cluster that replaces the layer ``last``."""
    indices: list[tuple[Any, tuple[str, ...] | None]] = []
    numblocks: dict[str, Grid] = {}
    for name, axes in cluster.inputs:
        read, own, blocks = cluster.uncut(name, axes, arrays)
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
        indices.append(_steps(cluster, arrays.declared(cluster.last), letters))
    tokens = [TaskRef(blockwise_token(i)) for i in range(len(indices))]
    layer: Layer = Blockwise(
        cluster.last,
        letters,
        Task(cluster.last, calls(_fusion(cluster, arrays)), *tokens),
        indices,
        numblocks=numblocks,
        new_axes={letter: 1 for letter in letters if letter not in covered},
        annotations=last.annotations,
    )
    layer.collection_annotations = last.collection_annotations
    return layer


def _steps(
    cluster: Cluster, node: ArrayNode, letters: tuple[str, ...]
) -> tuple[Any, tuple[str, ...] | None]:
    """Return how the inputs of each block are cut, as an operand and its index."""
    by_index: dict[Index, tuple[Steps, ...]] = {}
    for index in node.indices:
        steps = []
        for name, axes in cluster.inputs:
            place = tuple(0 if axis is None else index[axis] for axis in axes)
            steps.append(cluster.cuts[name].blocks[place][1] if name in cluster.cuts else ())
        by_index[index] = tuple(steps)
    first = next(iter(by_index.values()))
    if all(each == first for each in by_index.values()):
        return first, None
    return BlockwiseDepDict(by_index, node.grid), letters


def _fusion(cluster: Cluster, arrays: ArrayGraph) -> Fusion:
    """Return the work of a cluster as one expression."""
    nodes = Nodes()
    keys: dict[Any, Any] = {key: i for i, key in enumerate(cluster.inputs)}
    numbers = {at: nodes.add(Input(at)) for at in keys.values()}
    tasks: dict[Any, GraphNode] = {}
    results: tuple[int, ...] = ()
    chunked, reduced = None, 0
    for name, (reading, _) in reversed(cluster.members.items()):
        read = [keys.get((s.name, cluster.inner(name, s)), s.name) for s in reading.sources]
        operands = [
            Operand.of(arrays.declared(source.name), numbers[key])
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
    declared = tuple(arrays.declared(name).dtype for name, _ in cluster.inputs)
    expression = Expression(tuple(nodes.nodes), results)
    cut = bool(cluster.cuts)
    chain = Chain.of(tasks, cluster.last, range(len(declared) + 1)).unnamed()
    return Fusion(expression, declared, chain, chunked, reduced, cut)


def fuse_expressions(
    graph: HighLevelGraph,
    arrays: ArrayGraph,
    local: Collection[str],
    keys: Collection[Any],
    calls: Calls,
) -> HighLevelGraph:
    """Replace layers by one wherever a kernel can do the work of several.

    ``arrays`` are the layers as Dask made them, ``local`` those that gangs may compute, and
    ``keys`` the requested blocks. ``calls`` returns what the tasks of a fusion call with their
    blocks. A new layer has the name and the blocks of the last one that it replaces.
    """
    finder = _Finder(graph, arrays, frozenset(local), frozenset(by_name(keys)))
    layers: dict[str, Layer] = dict(graph.layers)
    needed = {name: set(read) for name, read in graph.dependencies.items()}
    for name in reversed(finder.order):
        cluster = finder.cluster(name) if name in layers else None
        if cluster is not None:
            for replaced in cluster.layers:
                del layers[replaced], needed[replaced]
            layers[name] = layer_of(cluster, graph.layers[name], arrays, calls)
            needed[name] = {*cluster.reads()}
    return HighLevelGraph(layers, needed)


@dataclass
class _Finder:
    """Finds clusters in a graph."""

    graph: HighLevelGraph
    arrays: ArrayGraph
    local: frozenset[str]
    requested: frozenset[str]
    readings: dict[str, Reading | None] = field(default_factory=dict)

    @cached_property
    def readers(self) -> Mapping[str, set[str]]:
        """The layers that read each layer."""
        readers: Mapping[str, set[str]] = reverse_dict(self.graph.dependencies)
        return readers

    @cached_property
    def order(self) -> dict[str, int]:
        """The number of each layer, above those of all that it reads."""
        return {name: i for i, name in enumerate(depth_first(self.graph.dependencies))}

    def reading(self, name: str) -> Reading | None:
        """Return the reading of a layer, made once."""
        if name not in self.readings:
            layer, reading = self.graph.layers[name], None
            if layer is not self.arrays.layers.get(name) or self.arrays.is_out(name):
                pass
            elif isinstance(layer, Blockwise):
                reading = read_blockwise(self.arrays, name)
            elif type(layer) is MaterializedLayer and len(self.graph.dependencies[name]) == 1:
                reading = read_view(self.arrays, name, layer)
                reading = reading or read_aggregated(self.graph, self.arrays, name, layer)
                reading = reading or read_arg_chunks(self.graph, self.arrays, name, layer)
            self.readings[name] = reading
        return self.readings[name]

    def cluster(self, last: str) -> Cluster | None:
        """Return the layers that become one with ``last``, ``None`` if nothing is gained."""
        cluster = self._grown(last, True)
        return self._grown(last, False) if cluster and self._hides(cluster) else cluster

    def _grown(self, last: str, whole: bool) -> Cluster | None:
        """Collect layers from the last one backwards; with ``whole``, whole reductions too."""
        node, cluster = self.arrays.node(last), Cluster()
        reading = None if node is None else self.reading(last)
        if node is None or reading is None or not self._fits(reading, last, whole):
            return None
        many = {axis for axis, blocks in enumerate(node.grid) if blocks != 1}
        own = tuple(axis if axis in many else None for axis in range(node.ndim))
        waiting: dict[str, dict[Axes, Grid]] = {last: {own: node.grid}}
        while waiting:
            name = max(waiting, key=self.order.__getitem__)
            fusion = waiting.pop(name)
            axes = next(iter(fusion))
            member = reading if name == last else self._member(name, last, cluster, whole)
            if member is None or len(fusion) > 1 or not self._once(member, many <= {*axes}):
                cluster.inputs.update({(name, axes): grid for axes, grid in fusion.items()})
                continue
            cluster.members[name] = member, axes
            cluster.layers.update(member.layers)
            for source in member.sources:
                known = waiting.setdefault(source.name, {})
                known[cluster.inner(name, source)] = source.grid
        self._cut(cluster, many)
        return cluster if self._gains(cluster) else None

    def _once(self, reading: Reading, bijective: bool) -> bool:
        """Whether each of its blocks is computed once, or as often as Dask would compute it."""
        readers = self.readers[reading.layers[-1]]
        return bijective or (len(readers) == 1 and not isinstance(reading.add, Whole))

    def _member(self, name: str, last: str, cluster: Cluster, whole: bool) -> Reading | None:
        """Return the reading of a layer that only the cluster reads, if it can join."""
        if name in self.requested or not self.readers[name] <= cluster.layers:
            return None
        reading = self.reading(name)
        known = reading is not None and reading.chunked is None
        return reading if known and reading and self._fits(reading, last, whole) else None

    def _cut(self, cluster: Cluster, many: Collection[int]) -> None:
        """Have the cluster read the blocks that its inputs are slices of, where that is no loss.

        ``many`` are the axes of the last result with several blocks.
        """
        once: dict[str, bool] = {}
        for name, axes in cluster.inputs:
            once[name] = once.get(name, True) and {*many} <= {*axes}
        cuts = {name: self._cut_of(name, cluster) for name, each in once.items() if each}
        cluster.cuts = {name: cut for name, cut in cuts.items() if cut is not None}
        cluster.cuts = self._without_thin(cluster)
        cluster.layers.update(cluster.cuts)

    def _cut_of(self, name: str, cluster: Cluster) -> Cut | None:
        """Return how an array that only the cluster reads is cut from blocks of its numbers."""
        if name in self.requested or not self.readers[name] <= cluster.layers:
            return None
        layer = self.graph.layers[name]
        cut = read_cut(self.arrays, name) if layer is self.arrays.layers.get(name) else None
        if cut is None or not self._alike((name, cut.source), cluster.last):
            return None
        grids = (self.arrays.declared(each).grid for each in (cut.source, name))
        return None if cut.axes(*grids) is None else cut

    def _alike(self, names: Iterable[str], last: str) -> bool:
        """Whether the first of some layers can be replaced with ``last``, and all its blocks."""
        name, *_ = names
        return (
            self.graph.layers[name].annotations == self.graph.layers[last].annotations
            and (name in self.local) == (last in self.local)
            and {self._container(name) for name in names} == {self._container(last)}
        )

    def _without_thin(self, cluster: Cluster) -> dict[str, Cut]:
        """Return the cuts without thin slices of blocks that would be kept or moved for long.

        Dask copies these slices, so the block can be freed. So they are cut here only if all come
        from one block, and the other inputs need not be waited for: they depend on nothing.
        """
        cuts = cluster.cuts
        thin = {
            name: cut
            for name, cut in cuts.items()
            if cut.is_thin(self.arrays.declared(cut.source), self.arrays.declared(name))
        }
        sources = {cut.source for cut in thin.values()}
        placed = [entry for entry in cluster.inputs if entry[0] in thin]
        alone = len(placed) == 1 or all(
            axes == placed[0][1] and thin[name].places == thin[placed[0][0]].places
            for name, axes in placed
        )
        others = {*cluster.reads()} - sources
        if len(sources) == 1 and alone and not any(map(self.graph.dependencies.get, others)):
            return cuts
        return {name: cut for name, cut in cuts.items() if name not in thin}

    def _fits(self, reading: Reading, last: str, whole: bool) -> bool:
        """Whether layers can become one with the last one."""
        *first, name = reading.layers
        layers = self.graph.layers
        containers = {self._container(each) for each in (name, *(s.name for s in reading.sources))}
        return (
            (whole or not isinstance(reading.add, Whole))
            and all(self.readers[each] == {name} and each not in self.requested for each in first)
            and all(
                layers[layer].annotations == layers[last].annotations for layer in reading.layers
            )
            and all((layer in self.local) == (last in self.local) for layer in reading.layers)
            and containers == {self._container(last)}
        )

    def _container(self, name: str) -> str | None:
        node = self.arrays.node(name)
        return None if node is None else node.container

    def _gains(self, cluster: Cluster) -> bool:
        """Whether one kernel is quicker than the functions that it replaces.

        CuPy's own kernel for one function is slower, and takes three times as long to compile.
        """
        readings = [reading for reading, _ in cluster.members.values()]
        working = [reading for reading in readings if not isinstance(reading.add, Viewed)]
        kernels = self._container(cluster.last) == CUPY and not all(x.views for x in working)
        return len(working) + len(cluster.cuts) >= (1 if kernels else 2)

    def _hides(self, cluster: Cluster) -> bool:
        """Whether Dask would no longer fuse a layer before these: it stops at reduced axes."""
        uncut = (axes for name, axes in cluster.inputs if name not in cluster.cuts)
        return any(len(axes) > cluster.ndim for axes in uncut) and any(
            isinstance(self.graph.layers[name], Blockwise)
            and name not in self.requested
            and self.readers[name] <= cluster.layers
            for name in cluster.reads()
        )
