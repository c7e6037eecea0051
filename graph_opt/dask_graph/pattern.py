"""Queries on an array graph, for rules."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from dask.blockwise import Blockwise

from graph_opt.dask_graph.internals import curry
from graph_opt.dask_graph.parse import ArrayGraph
from graph_opt.model.dtype import BFLOAT16
from graph_opt.model.node import CONTAINERS, ArrayNode

DTYPES = frozenset(
    {"bool", "float16", "float32", "float64", "complex64", "complex128"}
    | {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
)
CARRIED = DTYPES | {BFLOAT16}
"""Dtypes of blocks in regions and of sums; other collectives lack bfloat16."""


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


def block_function(graph: ArrayGraph, name: str) -> Callable[..., Any] | None:
    """Return the function that a blockwise layer applies to each block."""
    layer = graph.layers[name]
    return getattr(layer.task, "func", None) if isinstance(layer, Blockwise) else None


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


def follow(graph: ArrayGraph, name: str, prefixes: Sequence[str], ndim: int) -> list[str]:
    """Return the chain of only readers with these name prefixes, up to an array of ``ndim`` axes.

    Nothing if a layer does not fit.
    """
    passed: list[str] = []
    reader = only_reader(graph, name)
    while reader is not None and reader.startswith(tuple(prefixes)):
        node = graph.node(reader)
        if node is None:
            return []
        passed.append(reader)
        if node.ndim == ndim:
            return passed
        reader = only_reader(graph, reader)
    return []
