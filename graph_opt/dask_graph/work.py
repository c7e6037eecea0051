"""What the tasks of Dask's layers do, in bytes of a copy and in products."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from dask.blockwise import Blockwise
from dask.highlevelgraph import Layer

from graph_opt.dask_graph.elementwise import is_product
from graph_opt.dask_graph.expressions import read_blockwise
from graph_opt.dask_graph.internals import _matmul, _tensordot, chunk_einsum, curry
from graph_opt.dask_graph.members import tasks_of
from graph_opt.dask_graph.parse import ArrayGraph, array_operands, once
from graph_opt.model.cost import Machine, Shape, Work
from graph_opt.model.layout import CUPY, ArrayNode

PASSES: Mapping[str, float] = {
    # views, and wrappers of another function
    **dict.fromkeys(("getitem", "getter", "getter_nofancy", "getter_inline", "identity"), 0.0),
    **dict.fromkeys(("transpose", "reshape", "squeeze", "expand_dims", "broadcast_to"), 0.0),
    **dict.fromkeys(("real", "imag", "_broadcast_trick_inner"), 0.0),
    # several operations in one function
    "moment_chunk": 12.0,
    # more work for an element than a copy
    **dict.fromkeys(("exp", "log", "sin", "cos", "tanh"), 3.0),
    "where": 4.0,
    **dict.fromkeys(("fft", "ifft", "rfft", "irfft", "fftn", "ifftn"), 12.0),
    "cumsum": 27.0,
    "_block_hist": 30.0,
    **dict.fromkeys(("power", "pow"), 90.0),
    **dict.fromkeys(("qr", "_wrapped_qr"), 350.0),
}
"""Seconds of a function over those of a copy of the bytes that it reads and writes."""

USUAL = 2.0
"""The factor of other functions: a copy reuses memory, while their results are new memory."""

ARITHMETIC = ("exp", "log", "sin", "cos", "tanh", "power", "pow")
"""Functions that take CuPy as long as others: memory limits all of them."""

RUNNING = ("cumsum", "cumprod")
"""Functions that read an array twice on GPUs, and write it once."""

OUTER_SUMS: Mapping[str, int] = {
    **dict.fromkeys(("sum", "nansum", "prod", "nanprod", "any", "all", "mean_chunk"), 1),
    **dict.fromkeys(("chunk_min", "chunk_max", "arg_chunk"), 1),
    "moment_chunk": 2,
}
"""Reductions in functions whose time depends on the axes on GPUs."""

OUTER = 45.0
"""CuPy's reduction along other axes than the last one, over a copy of the bytes that it reads."""

MEMORY = 1.2
"""What of these factors is memory: a function within a kernel on a CPU does without it."""

PRODUCTS = (_matmul, _tensordot, chunk_einsum)

LOOP_SLOWDOWN = 12.0
"""``einsum`` of blocks multiplies in a loop, so much slower than a matrix product."""


def task_seconds(graph: ArrayGraph, name: str, given: Collection[str], machine: Machine) -> float:
    """Predict the work of one task of the layer ``name``, on average.

    The layer is fused of all layers of ``graph`` between the layers ``given`` and itself.
    """
    found = layers_of(graph, name, given)
    kernel = kernel_of(graph, found)
    works = [_work(graph, each) for each in found - kernel]
    works += [_within(graph, each, kernel) for each in kernel]
    seconds = sum(tasks * work.seconds(machine) for tasks, work in works)
    return seconds / max(1, _tasks(graph.layers[name]))


def layers_of(graph: ArrayGraph, name: str, given: Collection[str]) -> set[str]:
    """Return the layers between the layers ``given`` and a layer, with the latter."""
    found, waiting = {name}, [name]
    while waiting:
        read = graph.dependencies[waiting.pop()]
        needed = [other for other in read if other not in given and other not in found]
        found.update(needed)
        waiting += needed
    return found


def kernel_of(graph: ArrayGraph, names: Collection[str]) -> set[str]:
    """Return those of the layers of a task that run as one kernel.

    A single layer has one only if it is a reduction on a GPU.
    """
    if not graph.fused:
        return set()
    readings = {name: found for name in names if (found := read_blockwise(graph, name))}
    reduces = any(found.chunked and _on_gpu(array(graph, name)) for name, found in readings.items())
    return {*readings} if len(readings) > 1 or reduces else set()


def _on_gpu(node: ArrayNode | None) -> bool:
    return node is not None and node.container == CUPY


def _within(graph: ArrayGraph, name: str, kernel: Collection[str]) -> tuple[int, Work]:
    """Return the work of a layer within a kernel.

    Blocks that enter or leave the kernel go through memory once. Between its functions they stay in
    cache, or in registers of a GPU, where functions cost nothing beside the memory.
    """
    (tasks, work), node = _work(graph, name), array(graph, name)
    read = [(other, array(graph, other)) for other, _ in array_operands(graph, name)]
    leaves = not graph.dependents[name] or not graph.dependents[name] <= {*kernel}
    outside = [other for at, other in read if at not in kernel] + ([node] if leaves else [])
    through = sum(map(block_nbytes, outside))
    if _on_gpu(node):
        return tasks, Work(through)
    copied = sum(block_nbytes(other) for _, other in (*read, (name, node)))
    nbytes = USUAL * copied if _is_product(graph, name) else work.nbytes
    return tasks, Work(through + max(0.0, nbytes - MEMORY * copied))


def _is_product(graph: ArrayGraph, name: str) -> bool:
    """Whether a layer is a power that kernels multiply."""
    layer: Any = graph.layers[name]
    numbers = [value for value, index in layer.indices if index is None]
    node, function = array(graph, name), getattr(layer.task, "func", None)
    return (
        function is operator.pow
        and node is not None
        and len(numbers) == 1
        and is_product(numbers[0], node.dtype)
    )


def _tasks(layer: Layer) -> int:
    """Return the number of tasks of a layer."""
    if isinstance(layer, Blockwise):
        return math.prod(layer.dims[letter] for letter in layer.output_indices)
    return len(layer)


@once
def _work(graph: ArrayGraph, name: str) -> tuple[int, Work]:
    """Return the number of tasks of a layer and the work of one of them."""
    layer = graph.layers[name]
    if isinstance(layer, Blockwise):
        return _tasks(layer), _blockwise(graph, name, layer)
    task: Any = next(iter(tasks_of(graph, name)), (None, None))[1]
    if task is None or not task.dependencies:
        return 0, Work()
    nodes = [array(graph, other) for other in (name, *graph.dependencies[name])]
    return 1, Work(passes_of(getattr(task, "func", None), {}) * sum(map(_nbytes, nodes)))


def _blockwise(graph: ArrayGraph, name: str, layer: Blockwise) -> Work:
    """Return the work of a block of average size."""
    operands = [(array(graph, other), index) for other, index in array_operands(graph, name)]
    node, task = array(graph, name), layer.task
    copied = block_nbytes(node)
    for operand, index in operands:
        inner = math.prod(layer.dims[letter] for letter in {*index} - {*layer.output_indices})
        copied += inner * block_nbytes(operand)
    function: Any = getattr(task, "func", None)
    if function in PRODUCTS and len(operands) == 2 and node is not None:
        shape, times = _product(operands, layer.output_indices, node)
        times *= LOOP_SLOWDOWN if function is chunk_einsum else 1
        return Work(copied, shape, times, node.dtype)
    literals = [value for value, index in layer.indices if index is None]
    options = getattr(task, "kwargs", {})
    if len(literals) == 1 and bool(np.all(literals[0] == 2)):  # a square
        return Work(USUAL * copied)
    if _on_gpu(node):
        ndim = max((each.ndim for each, _ in operands if each), default=0)
        return Work(_gpu_passes(function, options, ndim) * copied)
    return Work(passes_of(function, options) * copied)


def _product(
    operands: Sequence[tuple[ArrayNode | None, tuple[Any, ...]]],
    output: tuple[Any, ...],
    node: ArrayNode,
) -> tuple[Shape, float]:
    """Return the shape of the product of two blocks, and the number of such products."""
    lengths: dict[Any, float] = {}
    for operand, index in operands:
        for letter, length in zip(index, lengths_of(operand), strict=False):
            lengths[letter] = max(length, lengths.get(letter, 1.0))
    left, right = ({*index} for _, index in operands)
    # a letter of the result is contracted if only 1 is left of each block
    made = zip(output, lengths_of(node), strict=False)
    kept = {letter for letter, length in made if length >= lengths.get(letter, 1.0)}
    groups = (left - right, (left & right) - kept, right - left, left & right & kept)
    m, k, n, times = (math.prod(lengths.get(each, 1.0) for each in group) for group in groups)
    return (round(m), round(k), round(n)), times


def lengths_of(node: ArrayNode | None) -> list[float]:
    """Return the average length of blocks along each axis, nothing if unknown."""
    if node is None or not node.known:
        return []
    return [n / max(1, blocks) for n, blocks in zip(node.shape, node.grid, strict=True)]


def passes_of(function: Any, options: Mapping[str, Any]) -> float:
    """Return the factor of a function on a host; an alias of a block has no function."""
    return 0.0 if function is None else PASSES.get(named(function, options), USUAL)


def _gpu_passes(function: Any, options: Mapping[str, Any], ndim: int) -> float:
    """Return the factor of a function of CuPy's that reads blocks with ``ndim`` axes."""
    name = "" if function is None else named(function, options)
    if name in ARITHMETIC or name in RUNNING:
        return USUAL
    axes = options.get("axis", ())
    axes = axes if isinstance(axes, tuple | list) else (axes,)
    if name in OUTER_SUMS and axes and not {-1, ndim - 1} & {*axes}:
        return OUTER_SUMS[name] * OUTER
    return passes_of(function, options)


def named(function: Any, options: Mapping[str, Any]) -> str:
    """Return the name of a function; that of a wrapper is its wrapped function's."""
    return str(getattr(unwrapped(function, options), "__name__", ""))


def unwrapped(function: Any, options: Mapping[str, Any]) -> Any:
    """Return a function, or that which it wraps."""
    while isinstance(function, partial | curry):
        function = function.func
    wrapped = options.get("enforce_dtype_function")
    return function if wrapped is None else unwrapped(getattr(wrapped, "value", wrapped), {})


@once
def array(graph: ArrayGraph, name: str) -> ArrayNode | None:
    """Return the array of this name, with the chunks of partial results of reductions.

    Dask declares those of the input for them.
    """
    node, layer = graph.node(name), graph.layers.get(name)
    options = getattr(getattr(layer, "task", None), "kwargs", {})
    if node is None or not options.get("keepdims"):
        return node
    axes = options.get("axis", ())
    axes = {
        axis % max(1, node.ndim) for axis in (axes if isinstance(axes, tuple | list) else (axes,))
    }
    chunks = tuple(
        (1,) * len(sizes) if axis in axes else sizes for axis, sizes in enumerate(node.chunks)
    )
    return replace(node, chunks=chunks)


def _nbytes(node: ArrayNode | None) -> float:
    """Return the bytes of an array, 0 if unknown."""
    return 0.0 if node is None or not node.known else float(node.size * _itemsize(node))


def _itemsize(node: ArrayNode) -> int:
    """Return the bytes of an element, 0 for structured dtypes: they have no name."""
    try:
        return node.itemsize
    except TypeError:
        return 0


def block_nbytes(node: ArrayNode | None) -> float:
    """Return the average bytes of a block, 0 if unknown."""
    return 0.0 if node is None else _nbytes(node) / max(1, node.blocks)
