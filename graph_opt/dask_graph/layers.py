"""Layers with a piece: placeholders during rewriting, and operations of our own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from dask.array.core import Array
from dask.highlevelgraph import HighLevelGraph, Layer
from dask.tokenize import tokenize
from dask.utils import typename

from graph_opt.dask_graph.internals import Alias, GraphNode, Task, convert_legacy_graph, cull
from graph_opt.model.layout import ArrayNode, Chunks, Index
from graph_opt.model.piece import Piece

Key = Any
Expand = Callable[[Any], Array]
Passes = Callable[[Any], Array | None]


class _BlocksOfPiece(Layer):
    """The blocks of a piece that others read, all blocks of its output if ``wanted`` is None."""

    def __init__(
        self,
        piece: Piece,
        wanted: frozenset[Index] | None,
        annotations: Mapping[str, Any] | None,
    ) -> None:
        super().__init__(annotations=annotations)
        self.piece = piece
        self.wanted = wanted

    def get_output_keys(self) -> set[Key]:
        """Return the keys of the wanted blocks."""
        wanted = self.piece.output.indices if self.wanted is None else self.wanted
        return {(self.piece.output.name, *index) for index in wanted}

    @property
    def has_legacy_tasks(self) -> bool:
        """Never."""
        return False


class PieceLayer(_BlocksOfPiece):
    """Placeholder without tasks for a piece; ``emit`` replaces it.

    By default all computed blocks are wanted.
    """

    wanted: frozenset[Index]

    def __init__(
        self,
        piece: Piece,
        wanted: frozenset[Index] | None = None,
        annotations: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            piece, frozenset(piece.computed) if wanted is None else wanted, annotations
        )

    def is_materialized(self) -> bool:
        """Never."""
        return False

    def cull(
        self, keys: Collection[Key], all_hlg_keys: Collection[Key]
    ) -> tuple[Layer, Mapping[Key, set[Key]]]:
        """Keep the blocks in ``keys`` and their inputs."""
        name = self.piece.output.name
        wanted = frozenset(index for index in self.wanted if (name, *index) in keys)
        if not wanted:
            return self, {}
        layer = self
        if wanted != self.wanted:
            layer = PieceLayer(self.piece.restrict(wanted), wanted, self.annotations)
        read = {(node, *index) for node, index in layer.piece.reads()}
        return layer, dict.fromkeys(layer.get_output_keys(), read)

    def __getitem__(self, key: Key) -> GraphNode:
        raise KeyError(f"{self.piece.label} has no tasks before emit()")

    def __iter__(self) -> Iterator[Key]:
        return iter(self.get_output_keys())

    def __len__(self) -> int:
        return len(self.wanted)


def insert(graph: HighLevelGraph, pieces: Iterable[Piece]) -> HighLevelGraph:
    """Replace the layers of each piece by a :class:`PieceLayer`."""
    layers: dict[str, Layer] = dict(graph.layers)
    dependencies: dict[str, set[str]] = {k: set(v) for k, v in graph.dependencies.items()}
    for piece in pieces:
        annotations: dict[str, object] = {}
        for name in piece.layers:
            annotations.update(layers.pop(name).annotations or {})
            del dependencies[name]
        layers[piece.output.name] = PieceLayer(piece, annotations=annotations or None)
        dependencies[piece.output.name] = {node.name for node in piece.inputs}
    return HighLevelGraph(layers, dependencies)


class DeferredLayer(_BlocksOfPiece):
    """An operation of our own: a piece, and its fallback to tasks of plain Dask.

    The optimizer replaces the layer by the piece. Otherwise the layer expands to tasks at first
    use, usually in the scheduler's process. ``expand(piece)`` returns an array with the chunks of
    the output by plain Dask, the same for all types of blocks; see :func:`array_of`. The piece
    has pickle support and a deterministic ``dask.tokenize`` token.

    ``passes(piece)`` returns the array of the output, of the same name, by several operations that
    need less memory, or ``None`` if there are none; see :func:`in_passes`.
    """

    def __init__(
        self,
        piece: Piece,
        expand: Expand,
        wanted: frozenset[Index] | None = None,
        annotations: Mapping[str, Any] | None = None,
        *,
        passes: Passes | None = None,
    ) -> None:
        super().__init__(piece, wanted, annotations)
        self.expand = expand
        self.passes = passes
        self._tasks: dict[Key, GraphNode] | None = None

    def is_materialized(self) -> bool:
        """Whether the tasks exist."""
        return self._tasks is not None

    def cull(
        self, keys: Collection[Key], all_hlg_keys: Collection[Key]
    ) -> tuple[Layer, Mapping[Key, set[Key]]]:
        """Keep the tasks that the blocks in ``keys`` need."""
        outputs = self.get_output_keys()
        kept = outputs & set(keys)
        if not kept:
            return self, {}
        layer = self
        if kept != outputs:
            wanted = frozenset(key[1:] for key in kept)
            layer = DeferredLayer(
                self.piece, self.expand, wanted, self.annotations, passes=self.passes
            )
            layer.collection_annotations = self.collection_annotations
            layer._tasks = cull(self.tasks(), kept)
        return layer, {key: set(task.dependencies) for key, task in layer.items()}

    @cached_property
    def expanded(self) -> Array:
        """The array by plain Dask, under another name than that of the output."""
        return self.expand(self.piece)

    def tasks(self) -> dict[Key, GraphNode]:
        """Return the tasks, created at the first call."""
        if self._tasks is None:
            output, array = self.piece.output.name, self.expanded
            graph = dict(array.dask)
            read = {(node.name, *index) for node in self.piece.inputs for index in node.indices}
            named = {}
            for key, task in convert_legacy_graph(graph, all_keys={*graph, *read}).items():
                new = (output, *key[1:]) if key[0] == array.name else key
                # an Alias only changes its key if the mapping has it
                named[new] = task if new == key else task.substitute({key: new}, new)
            self._tasks = named if self.wanted is None else cull(named, self.get_output_keys())
        return self._tasks

    def __getstate__(self) -> dict[str, Any]:
        state = {key: value for key, value in self.__dict__.items() if key != "expanded"}
        return {**state, "_tasks": None}

    def __getitem__(self, key: Key) -> GraphNode:
        return self.tasks()[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self.tasks())

    def __len__(self) -> int:
        return len(self.tasks())


def array_of(node: ArrayNode, tasks: Mapping[Key, GraphNode] | None = None) -> Array:
    """Return an array with the blocks of a node, and these tasks: none to build others on it."""
    return Array(dict(tasks or {}), node.name, node.chunks, dtype=node.dtype)


def in_passes(graph: HighLevelGraph, names: Iterable[str]) -> HighLevelGraph | None:
    """Replace those of our own operations that have passes by their layers, ``None`` if none."""
    layers: dict[str, Layer] = dict(graph.layers)
    dependencies: dict[str, set[str]] = {k: set(v) for k, v in graph.dependencies.items()}
    in_passes = False
    for name in names:
        layer = layers[name]
        if not isinstance(layer, DeferredLayer) or layer.passes is None:
            continue
        array = layer.passes(layer.piece)
        if array is None:
            continue
        in_passes, sources, container = True, dependencies[name], layer.piece.output.container
        for each, made in array.dask.layers.items():
            if each not in sources:
                made.annotations = layer.annotations
                made.collection_annotations["chunk_type"] = container
                layers[each], dependencies[each] = made, set(array.dask.dependencies[each])
    return HighLevelGraph(layers, dependencies) if in_passes else None


def deferred(
    name: str,
    sources: tuple[Array, ...],
    chunks: Chunks,
    dtype: str,
    token: Any,
    piece: Callable[[ArrayNode, tuple[ArrayNode, ...]], Piece],
    expand: Expand,
    passes: Passes | None = None,
    *,
    key: str | None = None,
    container: str | None = None,
) -> Array:
    """Return the result of an operation on arrays, as one layer.

    The array is called ``key``, by default a unique name that begins with ``name``. The type of
    all blocks is ``container``, by default that of the first source.

    ``token`` is all that the result depends on besides its sources. ``piece(output, sources)``
    returns the operation on array nodes, ``expand`` the tasks of plain Dask, and ``passes``
    operations that need less memory; see :class:`DeferredLayer`.
    """
    key = key or f"{name}-{tokenize(*(x.name for x in sources), token)}"
    meta = np.empty_like(sources[0]._meta, dtype=dtype)
    container = container or typename(type(meta))
    nodes = tuple(ArrayNode(x.name, x.chunks, x.dtype.name, container) for x in sources)
    output = ArrayNode(key, chunks, dtype, container)
    layer = DeferredLayer(piece(output, nodes), expand, passes=passes)
    graph = HighLevelGraph.merge(*(x.dask for x in sources))
    names = {name for x in sources for name in x.__dask_layers__()}
    graph = HighLevelGraph({**graph.layers, key: layer}, {**graph.dependencies, key: names})
    return Array(graph, key, chunks, dtype=dtype, meta=meta)


def renamed(task: GraphNode, names: Mapping[Key, Any], key: Key) -> GraphNode:
    """Return a task with another key, which reads what ``names`` has for the keys that it reads."""
    if isinstance(task, Alias):  # only changes its key with its target
        target = names.get(task.target, task.target)
        return target.substitute({}, key) if isinstance(target, Task) else Alias(key, target=target)
    return task.substitute(names, key)
