"""Recognises compensated and reproducible sums of many numbers; their target is ``kahan_sum``.

``dask_dgpu.array.reductions`` builds them as Dask does its own reductions, and names its functions
so that they are known here::

    sum_block (blockwise) -> add_partials ("-partial-") ... -> finish ("-aggregate-")

Where partial sums are small, or the first layer can be fused with elementwise work before
it, this graph is the best there is: little travels, and blocks need not exist as a whole. A
gang is for large partial sums of blocks that are there anyway.
"""

from __future__ import annotations

import math
from typing import Any

from dask.blockwise import Blockwise

from graph_opt.dask_graph.parse import ArrayGraph
from graph_opt.dask_graph.pattern import (
    CARRIED,
    array_operands,
    block_function,
    only_reader,
    unsupported,
    unwrapped,
)
from graph_opt.model.node import ArrayNode, Declined
from graph_opt.pieces.sum import PARTIAL_BYTES, SumPiece

FUNCTIONS = "dask_dgpu.array.reductions.partial"
WIDE = 1 << 20
"""Bytes of partial sums that a block passes on, from which a gang may pay."""


def match(graph: ArrayGraph, name: str) -> SumPiece | Declined | None:
    """Match the sum whose blockwise layer is ``name``; ``None`` is no sum, or one for Dask."""
    function = block_function(graph, name)
    if not _is(function, "sum_block"):
        return None
    operands = array_operands(graph, name)
    source = graph.node(operands[0][0]) if len(operands) == 1 else None
    inner = [name]
    while (reader := only_reader(graph, inner[-1])) is not None:
        inner.append(reader)
        if not _is(_function(graph, reader), "add_partials"):
            break
    last = _function(graph, inner[-1])
    output = graph.node(inner[-1])
    if source is None or output is None or not _is(last, "finish"):
        return None
    if unsupported((source,), output, CARRIED) or not _wide(output) or _fused(graph, source):
        return None
    asked = last.keywords
    piece = SumPiece(
        output,
        source,
        tuple(asked["axis"]),
        asked["keepdims"],
        getattr(function, "keywords", {})["method"],
        asked["kind"],
        inner=tuple(inner),
    )
    fault = piece.fault()
    return piece if fault is None else Declined(output.name, fault)


def _wide(output: ArrayNode) -> bool:
    return PARTIAL_BYTES * math.prod(map(max, output.chunks)) >= WIDE if output.size else False


def _fused(graph: ArrayGraph, source: ArrayNode) -> bool:
    """Whether blocks of an array exist only within the tasks that sum them."""
    blockwise = isinstance(graph.layers.get(source.name), Blockwise)
    return blockwise and only_reader(graph, source.name) is not None


def _is(function: Any, name: str) -> bool:
    function = unwrapped(function)
    return getattr(function, "__module__", None) == FUNCTIONS and function.__name__ == name


def _function(graph: ArrayGraph, name: str) -> Any:
    """Return the function of the tasks of a layer that Dask has written out."""
    layer = graph.layers[name]
    key = next(iter(layer), None)
    task = None if key is None else layer[key]
    return task[0] if isinstance(task, tuple) else getattr(task, "func", None)
