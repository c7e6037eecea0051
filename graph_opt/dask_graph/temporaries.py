"""The memory that the tasks of a layer need beside their operands and results, in blocks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from dask.blockwise import Blockwise

from graph_opt.dask_graph.expressions import read_blockwise
from graph_opt.dask_graph.internals import DataNode
from graph_opt.dask_graph.members import tasks_of
from graph_opt.dask_graph.parse import DTYPES, ArrayGraph, array_operands, depth_first, once
from graph_opt.dask_graph.transforms import beside, is_transform
from graph_opt.dask_graph.work import (
    PASSES,
    array,
    block_nbytes,
    kernel_of,
    layers_of,
    lengths_of,
    named,
    unwrapped,
)
from graph_opt.model.layout import CUPY, real_of

BLOCKS: Mapping[str, float] = {
    **dict.fromkeys(("cumsum", "cumprod", "mean_chunk", "concatenate"), 0.0),
    # differences and their squares, in double precision
    "moment_chunk": 2.0,
    # a copy of the boundary along each axis, and of the product with a weight
    "sweep_block": 3.0,
}
"""Temporaries of a function over the largest block that it reads or makes."""

USUAL = 1.0
"""The same of other functions: of NumPy's moments, and a guess for users' ones."""


class Beside(NamedTuple):
    """What a task needs beside its operands and its result.

    ``temporary`` is over the largest block that it reads or makes. ``held`` are the bytes that its
    result keeps allocated, over those of the result: more than 1 for a view of a temporary.
    """

    temporary: float = 0.0
    held: float = 1.0


class Made(NamedTuple):
    """What a function allocates: its result, and beside it. A view allocates nothing."""

    nbytes: float
    beside: float
    is_view: bool = False


def memory_beside(graph: ArrayGraph, name: str, given: Collection[str]) -> Beside:
    """Return what a task of the layer ``name`` needs beside its operands and its result.

    The layer is fused of all layers of ``graph`` between the layers ``given`` and itself. A task
    frees each value after its last use.
    """
    layers = layers_of(graph, name, given)
    kernel = kernel_of(graph, layers)
    if kernel and kernel >= layers:
        return Beside(_of_kernel(graph, kernel))
    read = {other for each in layers for other in graph.dependencies[each]} - layers
    largest = _largest(graph, {name, *read})
    if not largest:
        return Beside()
    if len(layers) == 1:
        return Beside(_function(graph, name).beside / largest)
    made = {each: _function(graph, each) for each in layers - kernel}
    tiles = _of_kernel(graph, kernel) * largest
    for each in kernel:
        inner = each != name and graph.dependents[each] <= kernel
        made[each] = Made(0.0 if inner else block_nbytes(array(graph, each)), tiles)
    most, result = _most(graph, name, made)
    own = block_nbytes(array(graph, name))
    held = max(1.0, result / own) if own else 1.0
    return Beside(max(0.0, most - held * own) / largest, held)


def _most(graph: ArrayGraph, name: str, made: Mapping[str, Made]) -> tuple[float, float]:
    """Return the most bytes that a task allocates at a time, and those that its result keeps."""
    inner = {each: graph.dependencies[each] & made.keys() for each in made}
    order = depth_first(inner)
    roots: dict[str, str] = {}
    last = dict[str, str]()
    for each in order:
        source = min(inner[each], default=each) if made[each].is_view else each
        roots[each] = roots.get(source, each)
        last.update(dict.fromkeys([roots[each], *(roots[other] for other in inner[each])], each))
    last.pop(roots[name])
    live, most = 0.0, 0.0
    for each in order:
        live += made[each].nbytes
        most = max(most, live + made[each].beside)
        live -= sum(made[root].nbytes for root, reader in last.items() if reader == each)
    return most, made[roots[name]].nbytes


def _of_kernel(graph: ArrayGraph, kernel: Collection[str]) -> float:
    """Return the temporaries of a kernel: tiles, or on a CPU an operation and its operand."""
    reduces = any((found := read_blockwise(graph, each)) and found.chunked for each in kernel)
    return 2.0 * (reduces and len(kernel) > 1 and not _on_gpu(graph, kernel))


def _on_gpu(graph: ArrayGraph, names: Iterable[str]) -> bool:
    return any((node := array(graph, each)) and node.container == CUPY for each in names)


@once
def _function(graph: ArrayGraph, name: str) -> Made:
    """Return what the function of a layer allocates."""
    layer: Any = graph.layers[name]
    task = getattr(layer, "task", None) or next(iter(tasks_of(graph, name)), (None, None))[1]
    function = getattr(task, "func", None)
    options = getattr(task, "kwargs", {})
    word = named(function, options)
    if function is None or (PASSES.get(word) == 0.0 and not _takes(word, task)):
        return Made(0.0, 0.0, is_view=True)
    nbytes = block_nbytes(array(graph, name))
    copies = _of_transform(graph, name)
    if copies is None:
        usual = USUAL if read_blockwise(graph, name) is None and not _takes(word, task) else 0.0
        copies = BLOCKS.get(word, usual) * _largest(graph, {name, *graph.dependencies[name]})
        if word == "moment_chunk" and not _on_gpu(graph, [name]):
            copies *= _widening(graph, graph.dependencies[name])
    return Made(nbytes, copies)


def _widening(graph: ArrayGraph, names: Iterable[str]) -> float:
    """Return the bytes of double precision over those of the narrowest array."""
    nodes = [node for each in names if (node := array(graph, each)) and node.dtype in DTYPES]
    return max([1.0, *(8 / real_of(node.dtype).itemsize for node in nodes)])


def _takes(word: str, task: Any) -> bool:
    """Whether a function takes elements by arrays of indices: it returns a copy, not a view."""
    index = task.args[1] if word == "getitem" and len(task.args) == 2 else ()
    index = _value(index)
    each = index if isinstance(index, tuple) else (index,)
    return any(not isinstance(at, slice | int | None | type(...)) for at in each)


def _of_transform(graph: ArrayGraph, name: str) -> float | None:
    """Return what a Fourier transform of NumPy's allocates, ``None`` for other functions."""
    layer = graph.layers[name]
    if not isinstance(layer, Blockwise):
        return None
    function = unwrapped(getattr(layer.task, "func", None), getattr(layer.task, "kwargs", {}))
    if not is_transform(function):
        return None
    operands = array_operands(graph, name)
    node = array(graph, operands[0][0]) if len(operands) == 1 else None
    if node is None or not node.known or node.dtype not in DTYPES or node.container == CUPY:
        return None
    values = [_value(value) for value, index in layer.indices if index is None]
    options = {key: _value(value) for key, value in layer.task.kwargs.items()}
    return beside(function.__name__, values, options, lengths_of(node), node.dtype)


def _value(argument: Any) -> Any:
    return argument.value if isinstance(argument, DataNode) else argument


def _largest(graph: ArrayGraph, names: Iterable[str]) -> float:
    """Return the bytes of the largest block of some arrays, on average."""
    return max((block_nbytes(array(graph, each)) for each in names), default=0.0)
