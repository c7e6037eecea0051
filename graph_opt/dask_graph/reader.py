"""Dask's HighLevelGraphs for the planner: what is in them, and graphs with gangs in their place.

This implements :mod:`graph_opt.model.reader`. On GPUs a blockwise layer may call another function
than Dask's, because it is quicker.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from math import ceil
from typing import Any

from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer

from graph_opt.dask_graph.blockwork import blockwork, in_levels, node_of, waits
from graph_opt.dask_graph.emit import TaskFunctions, emit
from graph_opt.dask_graph.functions import Functions, exchanged
from graph_opt.dask_graph.fusing import Calls, Fusion, fuse_expressions
from graph_opt.dask_graph.internals import Alias, BlockwiseDep, DataNode, Task
from graph_opt.dask_graph.layers import PieceLayer, in_passes, insert
from graph_opt.dask_graph.parse import (
    CARRIED,
    ArrayGraph,
    Culled,
    arrays_of,
    calls_others,
    container_of,
    cull,
    fuse,
    is_block,
    is_data,
    is_map,
    is_member,
    is_stored,
    parse,
    unsupported,
)
from graph_opt.dask_graph.plain import Plain
from graph_opt.dask_graph.products import with_plain
from graph_opt.dask_graph.recipes import recipe_of
from graph_opt.dask_graph.rules import find
from graph_opt.dask_graph.words import steps_of, word_of
from graph_opt.dask_graph.work import array, memory_beside, task_seconds
from graph_opt.model.cost import Beside, Machine
from graph_opt.model.layout import CUPY, ArrayNode, block_nbytes
from graph_opt.model.names import LEVEL
from graph_opt.model.piece import Blockwork, Piece, Region
from graph_opt.model.reader import OPTED_OUT, Key, Matches, OperationLayers, PlainLayer
from graph_opt.model.recipe import Recipe
from graph_opt.passes import depth_first, name_of
from graph_opt.pieces.matmul import TERM, ProductPiece

CREATES = "creates blocks"
NO_RULE = "no rule knows it"
UNDECLARED = "a part of one of Dask's operations"


@dataclass(frozen=True)
class Runtime:
    """What the tasks of gangs and of kernels call, and functions of Dask's to exchange on GPUs.

    Gangs call ``merges`` in place of functions that merge parts of reductions.
    """

    tasks: TaskFunctions
    kernels: Calls
    exchanged: Functions
    merges: Functions


class _Layers(ABC):
    """What Dask's layers say of themselves, those of a user and those with pieces in between."""

    @property
    @abstractmethod
    def graph(self) -> HighLevelGraph:
        """The layers."""

    @property
    def dependencies(self) -> Mapping[str, AbstractSet[str]]:
        return self.graph.dependencies

    def is_map(self, name: str) -> bool:
        return is_map(self.graph.layers[name])

    def is_stored(self, name: str) -> bool:
        return is_stored(self.graph.layers.get(name))

    def calls_users(self, name: str) -> bool:
        layer = self.graph.layers[name]
        return isinstance(layer, Blockwise) and calls_others(layer)


@dataclass(frozen=True)
class LayerReader(_Layers):
    """Reads the layers of a graph as Dask made it; ``fused`` are kernels wanted."""

    source: HighLevelGraph
    keys: frozenset[Key]
    runtime: Runtime
    fused: bool = False

    @cached_property
    def graph(self) -> HighLevelGraph:
        """The graph with other functions on GPUs."""
        exchanged = self.runtime.exchanged
        return with_functions(self.source, exchanged) if self.fused else self.source

    @cached_property
    def arrays(self) -> ArrayGraph:
        """The layers, read as arrays."""
        return parse(self.graph, self.keys, self.fused)

    @cached_property
    def matches(self) -> Matches:
        return find(self.arrays)

    def array(self, name: str) -> ArrayNode | None:
        return array(self.arrays, name)

    def with_pieces(self, pieces: Collection[Piece], left: Collection[str]) -> PieceGraph:
        """Replace layers by pieces, fuse Dask's work between them, and drop unused blocks."""
        graph = insert(self.graph, pieces)
        others = graph.layers.keys() - {*left} - {piece.output.name for piece in pieces}
        local = {name for name in others if is_member(self.arrays, name)}
        graph = self._combined(graph, local)
        return PieceGraph(self, cull(fuse(graph, local, self.keys), self.keys), local)

    def _combined(self, graph: HighLevelGraph, local: Collection[str]) -> HighLevelGraph:
        """Replace layers by kernels; without GPUs no layer alone has one."""
        pieces = {name for name, each in graph.layers.items() if isinstance(each, PieceLayer)}
        works = {name for name, read in graph.dependencies.items() if read} - pieces
        alone = not any(graph.dependencies[name] & works for name in works)
        on_gpus = CUPY in {container_of(self.arrays, name) for name in works}
        if not self.fused or (alone and not on_gpus):
            return graph
        return fuse_expressions(graph, self.arrays, local, self.keys, self.runtime.kernels)

    @cached_property
    def without_gangs(self) -> HighLevelGraph:
        return self._combined(self.graph, ())

    def in_passes(self, names: Iterable[str]) -> LayerReader | None:
        graph = in_passes(self.source, names)
        return None if graph is None else replace(self, source=graph)

    def task_seconds(self, name: str, given: Collection[str], machine: Machine) -> float:
        return task_seconds(self.arrays, name, given, machine)

    def beside(self, name: str, given: Collection[str]) -> Beside:
        return memory_beside(self.arrays, name, given)

    def plain_layers(
        self,
        pieces: Iterable[Piece],
        regions: Collection[Region],
        wanted: Collection[Key],
        machine: Machine,
        workers: int,
        *,
        kernels: bool,
    ) -> Iterator[PlainLayer]:
        arrays = self.arrays if kernels else replace(self.arrays, fused=False)
        graph = self.graph
        if kernels and not (self.matches.pieces or regions):
            graph = self.without_gangs
        culled = cull(fuse(insert(_with_data(graph, regions), pieces), (), wanted), wanted)
        layers, dependencies = culled.graph.layers, culled.graph.dependencies
        for name in depth_first(dependencies):
            layer, needs, reads = layers[name], culled.needs[name], dependencies[name]
            if isinstance(layer, PieceLayer):
                yield PlainLayer(name, reads, {name: culled.reads[name]}, piece=layer.piece)
                continue
            aliases, levels = set[Key](), list[list[Key]]()
            if isinstance(layer, MaterializedLayer):
                needs = {key: read for key, read in needs.items() if not is_data(layer[key])}
                aliases = {key for key in needs if _is_alias(layer[key])}
                node = array(arrays, name)
                levels = [] if node is None else in_levels(needs, node)
            inner = {*chain.from_iterable(levels)}
            blocks = {key: read for key, read in needs.items() if key not in inner}
            seconds = task_seconds(arrays, name, layers.keys(), machine)
            yield PlainLayer(
                name,
                reads,
                blocks,
                seconds * ceil(len(blocks) / workers),
                received(blocks, partial(_block_nbytes, arrays), workers),
                aliases,
                len(inner),
                waits(needs, levels),
            )

    def recipes(self, works: Iterable[Blockwork], numbers: Mapping[str, int]) -> dict[int, Recipe]:
        known: dict[str, BlockwiseDep] = {}  # equal facts about blocks travel once
        return {
            numbers[work.output.name]: recipe_of(work, numbers, known, self.runtime.merges)
            for work in works
        }

    @property
    def requested(self) -> list[str]:
        return arrays_of(self.source, self.keys)

    @cached_property
    def steps(self) -> list[OperationLayers]:
        return steps_of(self.arrays, self.matches.pieces)

    @cached_property
    def _operations(self) -> dict[str, tuple[str, int]]:
        steps = enumerate(self.steps)
        return {name: (step.word, number) for number, step in steps for name in step.layers}

    def operation(self, name: str) -> tuple[str, int]:
        layer = TERM.sub("", LEVEL.sub("", name))
        return self._operations.get(layer) or (word_of(layer), -1)

    def fault(self, step: OperationLayers) -> str | None:
        if any(map(self.arrays.is_out, step.layers)):
            return OPTED_OUT
        if step.node is None:
            return UNDECLARED
        if (fault := unsupported((step.node,), step.node, CARRIED)) is not None:
            return fault
        if not any(self.graph.dependencies[name] for name in step.layers):
            return CREATES
        return None if all(is_member(self.arrays, name) for name in step.layers) else NO_RULE

    def layers_of(self, graph: HighLevelGraph) -> Mapping[str, Layer]:
        return graph.layers

    def is_kernel(self, layer: Layer) -> bool:
        task: Any = getattr(layer, "task", None)
        if not isinstance(layer, Blockwise):
            task = next(iter(layer.values()), None)
        return isinstance(getattr(getattr(task, "func", None), "fusion", None), Fusion)

    def in_passes_of(self, graph: HighLevelGraph) -> dict[str, str]:
        passes = {}
        for name, layer in self.source.layers.items():
            if layer is graph.layers.get(name):
                continue
            operation = name
            while operation not in graph.layers:
                operation = min(self.source.dependents[operation])
            passes[name] = operation
        return passes

    def fallback(self, region: Region, *, travels: bool) -> Plain:
        graph, piece = self.source, region.members[0]
        if region.term_of is not None and isinstance(piece, ProductPiece):
            graph = with_plain(graph, piece)
        return Plain.of(graph, region, travels=travels)


def received(
    needs: Mapping[Key, Collection[Key]], nbytes: Callable[[Key], float], workers: int
) -> float:
    """Return the bytes that the busiest worker receives for tasks that need these blocks.

    A task runs where its largest block is. Blocks of its own index are there too, and others are
    anywhere. A worker fetches a block once.
    """
    readers = Counter[Key]()
    for key, read in needs.items() if workers > 1 else ():
        if len(read) > 1:
            others = sorted(read, key=lambda each: (each[1:] == key[1:], nbytes(each), repr(each)))
            readers.update(other for other in others[:-1] if other[1:] != key[1:])
    moved = sum(min(count, workers) * nbytes(key) for key, count in readers.items())
    return moved * (1 - 1 / workers) / max(1, min(workers, len(needs)))


def _block_nbytes(arrays: ArrayGraph, key: Key) -> float:
    """Return the bytes of a block, on average, 0 for other values."""
    node = array(arrays, name_of(key))
    return block_nbytes(node) if is_block(key, name_of(key), node) else 0.0


def with_functions(
    graph: HighLevelGraph, functions: Functions, container: str = CUPY
) -> HighLevelGraph:
    """Return a graph in which blockwise layers with blocks of a type call other functions.

    ``functions`` has what to call instead, by what Dask calls. Names stay, and so do arguments.
    """
    layers = {
        name: changed
        for name, layer in graph.layers.items()
        if (changed := _changed(layer, functions, container)) is not None
    }
    return HighLevelGraph({**graph.layers, **layers}, graph.dependencies) if layers else graph


def _changed(layer: Any, functions: Functions, container: str) -> Blockwise | None:
    """Return a layer with another function, ``None`` if there is no such."""
    facts = getattr(layer, "collection_annotations", None) or {}
    if not isinstance(layer, Blockwise) or facts.get("chunk_type") != container:
        return None
    task = layer.task
    function = exchanged(task.func, functions) if isinstance(task, Task) else None
    if function is None:
        return None
    changed = copy(layer)
    changed.task = Task(task.key, function, *task.args, **task.kwargs)
    changed.__dict__.pop("_cached_dict", None)
    return changed


def _with_data(graph: HighLevelGraph, regions: Iterable[Region]) -> HighLevelGraph:
    """Return a graph with data in place of the blocks that gangs compute."""
    layers: dict[str, Layer] = {}
    for region in regions:
        for name, blocks in region.wanted:
            keys = [(name, *index) for index in blocks]
            layers[name] = MaterializedLayer({key: DataNode(key, None) for key in keys})
    nothing: dict[str, set[str]] = {name: set() for name in layers}
    return HighLevelGraph({**graph.layers, **layers}, {**graph.dependencies, **nothing})


def _is_alias(task: Any) -> bool:
    """Whether a task only renames a block; in the old form it is the other key itself."""
    return isinstance(task, Alias) or (isinstance(task, tuple) and not callable(task[0]))


@dataclass(frozen=True)
class PieceGraph(_Layers):
    """A graph with :class:`PieceLayer`, and Dask's own layers fused between them."""

    reader: LayerReader
    culled: Culled
    local: AbstractSet[str]

    @property
    def keys(self) -> frozenset[Key]:
        return self.reader.keys

    @property
    def graph(self) -> HighLevelGraph:
        """The layers with pieces."""
        return self.culled.graph

    @property
    def readers(self) -> Mapping[str, AbstractSet[str]]:
        return self.culled.readers

    def annotations(self, name: str) -> Mapping[str, Any]:
        return self.graph.layers[name].annotations or {}

    def piece(self, name: str) -> Piece | None:
        layer = self.graph.layers[name]
        return layer.piece if isinstance(layer, PieceLayer) else None

    def node(self, name: str) -> ArrayNode:
        return node_of(self.reader.arrays, name)

    def container(self, name: str) -> str | None:
        return container_of(self.reader.arrays, name)

    def reads(self, name: str) -> AbstractSet[Key]:
        return self.culled.reads[name]

    def work(self, name: str, output: ArrayNode | None) -> Blockwork:
        return blockwork(name, self.culled, self.reader.arrays, output)

    def emit(self, launches: Iterable[tuple[Region, Any]]) -> HighLevelGraph:
        return emit(self.graph, launches, self.reader.runtime.tasks)
