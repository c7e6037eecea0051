"""Recognizes compensated and reproducible sums; their target is the ``kahan_sum`` algorithm.

``dask_dgpu.array.reductions`` builds them like Dask's own reductions, with known functions::

    sum_block (blockwise) -> add_partials ("-partial-") ... -> finish ("-aggregate-")

This graph is best if partial sums are small, or if Dask can fuse the first layer with
elementwise layers before it: transfers are small, and whole blocks need not exist. A gang is for
large partial sums of blocks that exist anyway.
"""

from __future__ import annotations

import math
from typing import Any

from dask.blockwise import Blockwise

from graph_opt.dask_graph.parse import (
    CARRIED,
    ArrayGraph,
    Rule,
    array_operands,
    block_function,
    only_reader,
    unsupported,
    unwrapped,
)
from graph_opt.model.layout import ArrayNode, Declined
from graph_opt.pieces.sum import PARTIAL_BYTES, SumPiece

FUNCTIONS = "dask_dgpu.array.reductions.partial"
WIDE = 1 << 20
"""Bytes of partial sums per block from which a gang may pay."""


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
    options = last.keywords
    piece = SumPiece(
        output,
        source,
        tuple(options["axis"]),
        options["keepdims"],
        getattr(function, "keywords", {})["method"],
        options["kind"],
        inner=tuple(inner),
    )
    fault = piece.fault()
    return piece if fault is None else Declined(output.name, fault)


RULE = Rule(match, functions=(f"{FUNCTIONS}.sum_block",))


def _wide(output: ArrayNode) -> bool:
    return PARTIAL_BYTES * math.prod(map(max, output.chunks)) >= WIDE if output.size else False


def _fused(graph: ArrayGraph, source: ArrayNode) -> bool:
    """Whether the blocks of an array exist only within the tasks that sum them."""
    blockwise = isinstance(graph.layers.get(source.name), Blockwise)
    return blockwise and only_reader(graph, source.name) is not None


def _is(function: Any, name: str) -> bool:
    function = unwrapped(function)
    return getattr(function, "__module__", None) == FUNCTIONS and function.__name__ == name


def _function(graph: ArrayGraph, name: str) -> Any:
    """Return the function of the tasks of a materialized layer."""
    layer = graph.layers[name]
    key = next(iter(layer), None)
    task = None if key is None else layer[key]
    return task[0] if isinstance(task, tuple) else getattr(task, "func", None)
