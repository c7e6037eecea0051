"""Read Dask's layers as arrays, answer the questions of rules, and leave out unused blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial, wraps
from typing import Any, TypeVar

from dask.blockwise import Blockwise
from dask.core import flatten, reverse_dict
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer

from graph_opt.dask_graph.internals import Compose, DataNode, GraphNode, curry, getitem_variadic
from graph_opt.model.layout import BFLOAT16, CONTAINERS, ArrayNode, Chunks
from graph_opt.passes import by_name, depth_first

Key = Any

DTYPES = frozenset(
    {"bool", "float16", "float32", "float64", "complex64", "complex128"}
    | {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
)
CARRIED = DTYPES | {BFLOAT16}
"""Dtypes of blocks in regions and of sums; other collectives lack bfloat16."""


@dataclass(frozen=True)
class ArrayGraph:
    """Dask's own layers read as arrays.

    ``dependencies`` are the layers that each layer reads, and ``requested`` the names of the
    requested arrays (or single keys). If ``fused``, kernels will do the work of several layers.
    """

    layers: Mapping[str, Layer]
    dependencies: Mapping[str, set[str]]
    requested: frozenset[str]
    fused: bool = False

    def is_out(self, name: str) -> bool:
        """Whether the user left a layer to Dask by ``dask.annotate(dgpu=False)``."""
        return (self.layers[name].annotations or {}).get("dgpu") is False

    @cached_property
    def dependents(self) -> Mapping[str, set[str]]:
        """The readers of each layer."""
        readers: Mapping[str, set[str]] = reverse_dict(self.dependencies)
        return readers

    def node(self, name: str) -> ArrayNode | None:
        """Return the array of this name, ``None`` if Dask declares none."""
        if name not in self._nodes:
            self._nodes[name] = self._node(name)
        return self._nodes[name]

    @cached_property
    def _nodes(self) -> dict[str, ArrayNode | None]:
        """Cache of :meth:`node`: every rule looks at the arrays around a layer."""
        return {}

    @cached_property
    def known(self) -> dict[tuple[Any, str], Any]:
        """Cache of :func:`once`."""
        return {}

    def _node(self, name: str) -> ArrayNode | None:
        layer = self.layers.get(name)
        facts = getattr(layer, "collection_annotations", None) or {}
        if facts.get("type") != "dask.array.core.Array" or _repeats(layer, facts["chunks"]):
            return None
        return ArrayNode(
            name=name,
            chunks=_chunks(layer, facts["chunks"]),
            dtype=_spelled(facts["dtype"]),
            container=str(facts["chunk_type"]),
        )


Found = TypeVar("Found")


def once(function: Callable[[ArrayGraph, str], Found]) -> Callable[[ArrayGraph, str], Found]:
    """Decorate a function of a graph and the name of a layer: it is called once for each layer."""

    @wraps(function)
    def call(graph: ArrayGraph, name: str) -> Found:
        key = function, name
        if key not in graph.known:
            graph.known[key] = function(graph, name)
        found: Found = graph.known[key]
        return found

    return call


def _repeats(layer: Layer | None, declared: Chunks) -> bool:
    """Whether an array has more blocks than its layer.

    Dask broadcasts along an axis of chunks (1, 0), so its one block appears twice.
    """
    return isinstance(layer, Blockwise) and any(
        len(sizes) != layer.dims[axis]
        for sizes, axis in zip(declared, layer.output_indices, strict=True)
    )


@lru_cache(maxsize=64)
def _spelled(dtype: Any) -> str:
    """Return the name of a dtype; NumPy takes as long for it as for a small sum."""
    return str(dtype)


def _chunks(layer: Layer | None, declared: Chunks) -> Chunks:
    """Return the chunk sizes, NaN if those of the layer are out of date.

    Dask records them before it knows that a mask makes them unknown.
    """
    if isinstance(layer, Blockwise) and getattr(layer.task, "func", None) is getitem_variadic:
        unknown: Any = math.nan
        return tuple((unknown,) * len(sizes) for sizes in declared)
    return tuple(map(tuple, declared))


def parse(graph: HighLevelGraph, keys: Iterable[object], fused: bool = False) -> ArrayGraph:
    """Read a high-level graph without materializing layers."""
    requested = frozenset(
        str(key[0] if isinstance(key, tuple) else key) for key in flatten(list(keys))
    )
    return ArrayGraph(graph.layers, graph.dependencies, requested, fused)


def unsupported(
    inputs: Sequence[ArrayNode], output: ArrayNode, dtypes: Collection[str] = DTYPES
) -> str | None:
    """Return why gangs cannot compute with these arrays, ``None`` if they can."""
    if not all(node.known for node in inputs):
        return "chunk sizes are unknown"
    for node in (*inputs, output):
        if node.dtype not in dtypes:
            return f"dtype {node.dtype} has no kernel"
    for node in inputs:
        if node.container not in CONTAINERS:
            return f"blocks of type {node.container} are neither NumPy nor CuPy arrays"
    return None


def full_name(found: Any) -> str:
    """Return the module and the name of a type, or of a function without its bound arguments."""
    found = unwrapped(found)
    return f"{getattr(found, '__module__', '')}.{getattr(found, '__name__', '')}"


def block_function(graph: ArrayGraph, name: str) -> Callable[..., Any] | None:
    """Return the function that a blockwise layer applies to each block."""
    layer = graph.layers[name]
    return getattr(layer.task, "func", None) if isinstance(layer, Blockwise) else None


def task_function(graph: ArrayGraph, name: str) -> Any:
    """Return the function that the first task of a layer calls, or else ``None``.

    Of a reduction that first concatenates, it is the function that reduces.
    """
    layer = graph.layers[name]
    if isinstance(layer, Blockwise):
        task: Any = layer.task
    else:
        task = next(iter(layer.values()), None) if isinstance(layer, MaterializedLayer) else None
    function = task[0] if isinstance(task, tuple) else getattr(task, "func", None)
    if isinstance(function, Compose):
        function = function.funcs[-1]
    return function if callable(function) else None


def unwrapped(function: Any) -> Any:
    """Return a function without the arguments that are bound to it."""
    while isinstance(function, partial | curry):
        function = function.func
    return function


def array_operands(graph: ArrayGraph, name: str) -> list[tuple[str, tuple[Any, ...]]]:
    """Return the name and the index of each array that a blockwise layer reads."""
    layer = graph.layers[name]
    if not isinstance(layer, Blockwise):
        return []
    return [
        (str(operand), tuple(index))
        for operand, index in layer.indices
        if index is not None and isinstance(operand, str)
    ]


def only_reader(graph: ArrayGraph, name: str) -> str | None:
    """Return the only layer that reads ``name``, ``None`` if others do or it is requested."""
    readers = graph.dependents[name]
    return next(iter(readers)) if len(readers) == 1 and name not in graph.requested else None


def is_stored(layer: Layer) -> bool:
    """Whether a layer has blocks, or futures of them, in place of tasks, as after ``persist``."""
    if not isinstance(layer, MaterializedLayer):
        return False
    block = next(iter(layer.values()), ())
    return isinstance(block, DataNode) or not isinstance(block, GraphNode | tuple | list)


@dataclass(frozen=True)
class Culled:
    """A graph with only the needed layers and tasks.

    ``reads`` are the keys of other layers that each layer reads, and ``needs`` the keys that
    each of its tasks reads.
    """

    graph: HighLevelGraph
    reads: dict[str, set[Key]]
    needs: dict[str, Mapping[Key, set[Key]]]

    @cached_property
    def readers(self) -> Mapping[str, set[str]]:
        """The layers that read each layer."""
        readers: Mapping[str, set[str]] = reverse_dict(self.graph.dependencies)
        return readers


def cull(graph: HighLevelGraph, keys: Collection[Key]) -> Culled:
    """Leave out all tasks that ``keys`` do not need.

    Dask's own culling renames layers and drops the dependencies between them.
    """
    legacy = any(layer.has_legacy_tasks for layer in graph.layers.values())
    known: set[Key] = graph.get_all_external_keys() if legacy else set()
    needed = set(keys)
    named = by_name(needed)
    layers: dict[str, Layer] = {}
    reads: dict[str, set[Key]] = {}
    needs: dict[str, Mapping[Key, set[Key]]] = {}
    for name in reversed(depth_first(graph.dependencies)):
        layer = graph.layers[name]
        listed = layer.get_output_keys()
        wanted = needed.intersection(listed)
        if isinstance(layer, Blockwise):
            wanted |= named[name]  # of chunks (0, 1) it lists one block, but makes both
        if wanted:
            layers[name], needs[name] = layer.cull(wanted, known)
            if isinstance(layer, Blockwise) and layers[name] is layer and wanted != listed:
                # Dask takes as many blocks as are listed for these
                layers[name] = layer._cull({key[1:] for key in wanted})
            alike = {id(read): read for read in needs[name].values()}  # a piece's tasks share one
            reads[name] = set().union(*alike.values()) - needs[name].keys()
            needed |= reads[name]
            for other, read in by_name(reads[name]).items():
                named[other] |= read
    between = {name: graph.dependencies[name] & layers.keys() for name in layers}
    return Culled(HighLevelGraph(layers, between), reads, needs)
