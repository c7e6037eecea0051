"""What the tasks of Dask's layers take: seconds of copies and of products, and memory."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from dask.blockwise import Blockwise

from graph_opt.dask_graph.internals import _matmul, _tensordot, chunk_einsum
from graph_opt.dask_graph.parse import (
    DTYPES,
    ArrayGraph,
    array_operands,
    block_function,
    full_name,
    once,
    task_function,
    tasks_of,
    unwrapped,
    value_of,
)
from graph_opt.dask_graph.readings import read_blockwise
from graph_opt.dask_graph.returned import MODULE
from graph_opt.model.cost import LOOP_SLOWDOWN, TALL, Beside, Machine
from graph_opt.model.layout import (
    CUPY,
    ArrayNode,
    block_nbytes,
    dtype_named,
    known_nbytes,
    real_of,
)
from graph_opt.passes import depth_first


class Rates(NamedTuple):
    """What a function takes, by measurement.

    ``passes`` are its seconds over those of a copy of the bytes that it reads and writes, on a host
    and ``on_gpus``, there by default the same. ``temporaries`` are over the largest block that it
    reads or makes, by default none of functions that kernels know, and one of others.
    """

    passes: float = 2.0
    temporaries: float | None = None
    on_gpus: float | None = None


USUAL = Rates()
"""The rates of other functions: a copy reuses memory, while their results are new memory."""

VIEW = Rates(0.0)
"""The rates of views, and of wrappers of another function."""

VIEWS = (
    *("getitem", "getter", "getter_nofancy", "getter_inline", "identity", "_broadcast_trick_inner"),
    *("transpose", "reshape", "squeeze", "expand_dims", "broadcast_to", "real", "imag"),
)
TRANSFORMS = ("fft", "ifft", "rfft", "irfft", "fftn", "ifftn")

RATES: Mapping[str, Rates] = {
    **dict.fromkeys(VIEWS, VIEW),
    **dict.fromkeys(TRANSFORMS, Rates(12.0)),
    **dict.fromkeys(("exp", "log", "sin", "cos", "tanh"), Rates(3.0)),
    # arithmetic costs nothing beside the memory of GPUs
    **dict.fromkeys(("power", "pow"), Rates(90.0, on_gpus=2.0)),
    **dict.fromkeys(("qr", "_wrapped_qr"), Rates(350.0)),
    "where": Rates(4.0),
    "_block_hist": Rates(30.0),
    "mean_chunk": Rates(temporaries=0.0),
    # differences and their squares, in double precision
    "moment_chunk": Rates(12.0, temporaries=2.0),
    # GPUs read an array twice, and write it once
    "cumsum": Rates(27.0, temporaries=0.0, on_gpus=2.0),
    "cumprod": Rates(temporaries=0.0, on_gpus=2.0),
    "concatenate": Rates(temporaries=0.0),
    # a copy of the boundary along each axis, and of the product with a weight
    "sweep_block": Rates(temporaries=3.0),
}
"""The rates of functions by name."""

MEMORY = 1.2
"""What of the passes is memory: a function within a kernel on a CPU does without it."""

USUAL_LIMBS = 4
"""Expected limbs of an exact sum."""

DOUBLE = 8
SINGLE_TRANSFORM, DOUBLE_TRANSFORM = 2.5, 1.7
"""Copies that NumPy's transforms allocate, complex in double precision, by that of their blocks."""

PRODUCTS = (_matmul, _tensordot, chunk_einsum)


class Work(NamedTuple):
    """The ``tasks`` of a layer. One copies bytes, or takes as long, and multiplies ``flops``."""

    tasks: int = 0
    nbytes: float = 0.0
    flops: float = 0.0
    dtype: str = "float64"

    def seconds(self, machine: Machine) -> float:
        """Predict all tasks on one rank."""
        rate = machine.product_rate((TALL, TALL, TALL), self.dtype)
        return self.tasks * (self.nbytes / machine.memory_bandwidth + self.flops / rate)


def task_seconds(graph: ArrayGraph, name: str, given: Collection[str], machine: Machine) -> float:
    """Predict the work of one task of the layer ``name``, on average.

    The layer is fused of all layers of ``graph`` between the layers ``given`` and itself.
    """
    layers = _layers_of(graph, name, given)
    kernel = _kernel_of(graph, layers)
    works = [_work(graph, each) for each in layers - kernel]
    works += [_within(graph, each, kernel) for each in kernel]
    return sum(work.seconds(machine) for work in works) / max(1, len(graph.layers[name]))


def _layers_of(graph: ArrayGraph, name: str, given: Collection[str]) -> set[str]:
    """Return the layers between the layers ``given`` and a layer, with the latter."""
    layers, waiting = {name}, [name]
    while waiting:
        read = graph.dependencies[waiting.pop()]
        needed = [other for other in read if other not in given and other not in layers]
        layers.update(needed)
        waiting += needed
    return layers


def _kernel_of(graph: ArrayGraph, names: Collection[str]) -> set[str]:
    """Return those of the layers of a task that run as one kernel.

    A single layer has one only if it is a reduction on a GPU.
    """
    if not graph.fused:
        return set()
    readings = {name: reading for name in names if (reading := read_blockwise(graph, name))}
    reduces = any(
        reading.chunked and _on_gpu(array(graph, name)) for name, reading in readings.items()
    )
    return {*readings} if len(readings) > 1 or reduces else set()


def _on_gpu(node: ArrayNode | None) -> bool:
    return node is not None and node.container == CUPY


def _within(graph: ArrayGraph, name: str, kernel: Collection[str]) -> Work:
    """Return the work of a layer within a kernel.

    Blocks that enter or leave the kernel go through memory once. Between its functions they stay in
    cache, or in registers of a GPU, where functions cost nothing beside the memory.
    """
    work, node, read = _work(graph, name), array(graph, name), graph.dependencies[name]
    leaves = not graph.dependents[name] or not graph.dependents[name] <= {*kernel}
    outside = [*(read - {*kernel}), *([name] if leaves else [])]
    through = sum(block_nbytes(array(graph, each)) for each in outside)
    if _on_gpu(node):
        return Work(work.tasks, through)
    copied = sum(block_nbytes(array(graph, each)) for each in (*read, name))
    # kernels multiply for most powers
    nbytes = USUAL.passes * copied if block_function(graph, name) is operator.pow else work.nbytes
    return Work(work.tasks, through + max(0.0, nbytes - MEMORY * copied))


@once
def _work(graph: ArrayGraph, name: str) -> Work:
    """Return the work of a layer, with blocks of average size."""
    layer, node = graph.layers[name], array(graph, name)
    if not isinstance(layer, Blockwise):
        task: Any = next(iter(tasks_of(graph, name)), (None, None))[1]
        if task is None or not task.dependencies:
            return Work()
        read = sum(
            known_nbytes(array(graph, dependency)) for dependency in graph.dependencies[name]
        )
        passes = passes_of(getattr(task, "func", None), {})
        return Work(1, passes * (known_nbytes(node) + read))
    copied, lengths = block_nbytes(node), dict[Any, float]()
    for other, index in array_operands(graph, name):
        operand = array(graph, other)
        inner = math.prod(layer.dims[letter] for letter in {*index} - {*layer.output_indices})
        copied += inner * block_nbytes(operand)
        if operand is not None and operand.known:
            sizes = (n / max(1, k) for n, k in zip(operand.shape, operand.grid, strict=True))
            for letter, length in zip(index, sizes, strict=False):
                lengths[letter] = max(length, lengths.get(letter, 1.0))
    function: Any = getattr(layer.task, "func", None)
    if function in PRODUCTS and node is not None:
        times = LOOP_SLOWDOWN if function is chunk_einsum else 1.0
        return Work(len(layer), copied, 2 * times * math.prod(lengths.values()), node.dtype)
    literals = [value for value, index in layer.indices if index is None]
    options = getattr(layer.task, "kwargs", {})
    is_square = len(literals) == 1 and bool(np.all(literals[0] == 2))
    passes = passes_of(function, options, on_gpu=_on_gpu(node))
    return Work(len(layer), (USUAL.passes if is_square else passes) * copied)


def passes_of(function: Any, options: Mapping[str, Any], *, on_gpu: bool = False) -> float:
    """Return the passes of a function; an alias of a block has no function."""
    rates = RATES.get(named(function, options), USUAL)
    passes = rates.on_gpus if on_gpu and rates.on_gpus is not None else rates.passes
    return 0.0 if function is None else passes


def _axes(options: Mapping[str, Any]) -> tuple[int, ...]:
    axes = options.get("axis", ())
    return tuple(axes) if isinstance(axes, tuple | list) else (axes,)


def named(function: Any, options: Mapping[str, Any]) -> str:
    """Return the name of a function; that of a wrapper is its wrapped function's."""
    return str(getattr(_inner(function, options), "__name__", ""))


def _inner(function: Any, options: Mapping[str, Any]) -> Any:
    """Return a function, or that which it wraps."""
    wrapped = options.get("enforce_dtype_function")
    return unwrapped(function if wrapped is None else getattr(wrapped, "value", wrapped))


@once
def array(graph: ArrayGraph, name: str) -> ArrayNode | None:
    """Return the array of this name, with the chunks and bytes of partial results of reductions.

    Dask declares the chunks of the input for them, and the dtype of the result.
    """
    node, layer = graph.node(name), graph.layers.get(name)
    if node is not None and (itemsize := _itemsize(graph, name)):
        node = replace(node, dtype=f"V{itemsize}")
    options = getattr(getattr(layer, "task", None), "kwargs", {})
    if node is None or not options.get("keepdims"):
        return node
    axes = {axis % max(1, node.ndim) for axis in _axes(options)}
    chunks = tuple(
        (1,) * len(sizes) if axis in axes else sizes for axis, sizes in enumerate(node.chunks)
    )
    return replace(node, chunks=chunks)


def _itemsize(graph: ArrayGraph, name: str) -> int:
    """Return the bytes of a part of a compensated or reproducible sum, 0 for other layers."""
    function: Any = task_function(graph, name) if name in graph.layers else None
    if full_name(function) == f"{MODULE}.added":
        return _itemsize(graph, min(graph.dependencies[name]))
    if full_name(function) != f"{MODULE}.partial_sum":
        return 0
    result = dtype_named(function.keywords["result"])
    numbers = 2 if result.kind == "c" else 1
    if function.keywords["method"] == "reproducible":
        return numbers * (USUAL_LIMBS * DOUBLE + 1)
    return numbers * DOUBLE * (4 if real_of(result) == np.float64 else 2)


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
    layers = _layers_of(graph, name, given)
    kernel = _kernel_of(graph, layers)
    read = {other for layer in layers for other in graph.dependencies[layer]} - layers
    largest = _largest(graph, {name, *read})
    if not largest:
        return Beside()
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
    reduces = any((reading := read_blockwise(graph, each)) and reading.chunked for each in kernel)
    on_gpu = any(_on_gpu(array(graph, each)) for each in kernel)
    return 2.0 * (reduces and len(kernel) > 1 and not on_gpu)


@once
def _function(graph: ArrayGraph, name: str) -> Made:
    """Return what the function of a layer allocates."""
    layer: Any = graph.layers[name]
    task = getattr(layer, "task", None) or next(iter(tasks_of(graph, name)), (None, None))[1]
    function = getattr(task, "func", None)
    options = getattr(task, "kwargs", {})
    word = named(function, options)
    if function is None or (RATES.get(word, USUAL) is VIEW and not _takes(word, task)):
        return Made(0.0, 0.0, is_view=True)
    nbytes = block_nbytes(array(graph, name))
    copies = _of_transform(graph, name, array(graph, name))
    if copies is None:
        blocks = RATES.get(word, USUAL).temporaries
        if blocks is None:
            blocks = float(read_blockwise(graph, name) is None and not _takes(word, task))
        copies = blocks * _largest(graph, {name, *graph.dependencies[name]})
        if word == "moment_chunk" and not _on_gpu(array(graph, name)):
            copies *= _widening(graph, graph.dependencies[name])
    return Made(nbytes, copies)


def _widening(graph: ArrayGraph, names: Iterable[str]) -> float:
    """Return the bytes of double precision over those of the narrowest array."""
    nodes = [node for name in names if (node := array(graph, name)) and node.dtype in DTYPES]
    return max([1.0, *(8 / real_of(node.dtype).itemsize for node in nodes)])


def _takes(word: str, task: Any) -> bool:
    """Whether a function takes elements by arrays of indices: it returns a copy, not a view."""
    index = task.args[1] if word == "getitem" and len(task.args) == 2 else ()
    index = value_of(index)
    each = index if isinstance(index, tuple) else (index,)
    return any(not isinstance(at, slice | int | None | type(...)) for at in each)


def _of_transform(graph: ArrayGraph, name: str, node: ArrayNode | None) -> float | None:
    """Return the temporaries of a Fourier transform of NumPy's, ``None`` for other functions."""
    task: Any = getattr(graph.layers[name], "task", None)
    function = _inner(getattr(task, "func", None), getattr(task, "kwargs", {}))
    if getattr(function, "__module__", "") != "numpy.fft" or node is None or _on_gpu(node):
        return None
    operands = [array(graph, other) for other in graph.dependencies[name]]
    known = [operand for operand in (node, *operands) if operand is not None]
    dtypes = {None if operand is None else operand.dtype for operand in operands}
    if function.__name__ in ("fft", "ifft", "irfft") and dtypes == {"complex128"}:
        return 0.0
    single = any(real_of(each.dtype).itemsize < DOUBLE for each in known if each.dtype in DTYPES)
    elements = max(block_nbytes(each) / each.itemsize for each in known)
    return (SINGLE_TRANSFORM if single else DOUBLE_TRANSFORM) * 2 * DOUBLE * elements


def _largest(graph: ArrayGraph, names: Iterable[str]) -> float:
    """Return the bytes of the largest block of some arrays, on average."""
    return max((block_nbytes(array(graph, name)) for name in names), default=0.0)
