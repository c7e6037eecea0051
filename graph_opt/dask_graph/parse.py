"""Read Dask's layers as arrays: what they compute, and which of them a gang can."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial, wraps
from itertools import chain
from typing import Any, TypeVar

from dask.blockwise import Blockwise
from dask.core import flatten, reverse_dict
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer

from graph_opt.dask_graph.gathering import Together
from graph_opt.dask_graph.internals import (
    JOINED,
    Alias,
    Compose,
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
    curry,
    getitem_variadic,
    getter,
    getter_inline,
    getter_nofancy,
    load_store_chunk,
    optimize_blockwise,
)
from graph_opt.model.layout import BFLOAT16, CONTAINERS, ArrayNode, Chunks
from graph_opt.passes import by_name, depth_first, name_of

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
        return _node(self, name)

    def declared(self, name: str) -> ArrayNode:
        """Return the array of this name; raise LookupError if Dask declares none."""
        node = self.node(name)
        if node is None:
            raise LookupError(f"expected a declaration of the array {name}, got none")
        return node

    @cached_property
    def known(self) -> dict[tuple[Any, str], Any]:
        """Cache of :func:`once`."""
        return {}


Found = TypeVar("Found")


def once(function: Callable[[ArrayGraph, str], Found]) -> Callable[[ArrayGraph, str], Found]:
    """Decorate a function of a graph and the name of a layer: it is called once for each layer."""

    @wraps(function)
    def call(graph: ArrayGraph, name: str) -> Found:
        key = function, name
        if key not in graph.known:
            graph.known[key] = function(graph, name)
        result: Found = graph.known[key]
        return result

    return call


@once
def _node(graph: ArrayGraph, name: str) -> ArrayNode | None:
    layer = graph.layers.get(name)
    facts = getattr(layer, "collection_annotations", None) or {}
    if facts.get("type") != "dask.array.core.Array" or _repeats(layer, facts["chunks"]):
        return None
    return ArrayNode(
        name=name,
        chunks=_chunks(layer, facts["chunks"]),
        dtype=_spelled(facts["dtype"]),
        container=str(facts["chunk_type"]),
    )


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
    requested = frozenset(map(name_of, flatten(list(keys))))
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


def row_of(table: Mapping[Any, Any], function: Any) -> Any:
    """Return what a table has for a function, if anything; some functions have no hash."""
    try:
        return table.get(function)
    except TypeError:
        return None


def value_of(argument: Any) -> Any:
    """Return an argument of a task, without Dask's wrapper of a constant."""
    return argument.value if isinstance(argument, DataNode) else argument


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


def is_stored(layer: Layer | None) -> bool:
    """Whether a layer has blocks, or futures of them, in place of tasks, as after ``persist``."""
    if not isinstance(layer, MaterializedLayer):
        return False
    return is_data(next(iter(layer.values()), ()))


def is_data(task: Any) -> bool:
    """Whether a layer has a block, or the future of one, in place of a task."""
    return isinstance(task, DataNode) or not isinstance(task, GraphNode | tuple | list)


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

CREATORS = (unwrapped(_broadcast_trick_inner), _apply_random, _apply_random_func)
"""Functions that create a block from no other, in all kinds of layers."""

CREATING_MODULES = ("numpy", "cupy", "dask.array.chunk")
"""Modules of other such functions: ``arange``, ``linspace``, ``eye``."""

BLOCK_FACTS = ("ArrayBlockIdDep", "ArrayValuesDep", "ArrayChunkShapeDep")
"""What a blockwise layer may read besides arrays."""


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
        if not (needed and graph.dependents[name]) or name in graph.requested:
            return False
        if not isinstance(layer, Blockwise):
            layer = MaterializedLayer(dict(tasks_of(graph, name)))
        return not calls_others(layer) and _is_work(graph, name)
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
    return next(
        (container_of(graph, dependency) for dependency in sorted(graph.dependencies[name])), None
    )


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
        for dependency in task.dependencies:
            if dependency in layer and not isinstance(layer[dependency], TaskRef):  # of a future
                if node is None:
                    return False
            elif not isinstance(dependency, tuple) or dependency[0] not in needed:
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


def arrays_of(graph: Any, keys: Iterable[Any]) -> list[str]:
    """Return the names of the requested arrays, also if tasks that join blocks are requested."""
    requested = set(map(name_of, keys))
    before = getattr(graph, "dependencies", {})
    joined = [before.get(name, ()) for name in requested if name.startswith(JOINED)]
    return sorted(requested.union(*joined))
