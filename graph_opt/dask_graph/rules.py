"""The rules: where in Dask's layers each piece starts, and the function that finds it there."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from dask.blockwise import Blockwise

from graph_opt.dask_graph import overlaps, products, rechunks
from graph_opt.dask_graph.internals import MERGE, P2P
from graph_opt.dask_graph.layers import DeferredLayer
from graph_opt.dask_graph.parse import (
    CARRIED,
    ArrayGraph,
    array_operands,
    block_function,
    full_name,
    only_reader,
    task_function,
    unsupported,
)
from graph_opt.model.layout import ArrayNode, Declined
from graph_opt.model.piece import Piece
from graph_opt.model.reader import OPTED_OUT, Matches
from graph_opt.pieces.sum import MODULE, PARTIAL_BYTES, SumPiece

WIDE = 1 << 20
"""Bytes of partial sums per block from which a gang may pay."""

Found = Piece | Declined | None


class Rule(NamedTuple):
    """Finds pieces: ``match(graph, name)`` returns the one that starts at the layer ``name``.

    It starts at layers of a type, at blockwise layers of a function, both by their full names, or
    at layers with a name before the token. It is ``None`` if there is none, and ``why`` says what
    makes the layer the start.
    """

    start: str
    match: Callable[[ArrayGraph, str], Found]
    why: str


def own(graph: ArrayGraph, name: str) -> Found:
    """Return the piece of an operation of our own."""
    layer: Any = graph.layers[name]
    piece: Piece = layer.piece
    reason = unsupported(piece.inputs, piece.output) or piece.fault()
    return piece if reason is None else Declined(name, reason)


def summed(graph: ArrayGraph, name: str) -> Found:
    """Match the sum whose blockwise layer is ``name``; ``None`` is one for Dask.

    ``dask_dgpu.array.reductions`` builds sums like Dask's own reductions, with known functions::

        partial_sum (blockwise) -> added ... -> finished

    This graph is best if partial sums are small, or if Dask can fuse the first layer with
    elementwise layers before it: transfers are small, and whole blocks need not exist. A gang is
    for large partial sums of blocks that exist anyway.
    """
    function: Any = block_function(graph, name)
    operands = array_operands(graph, name)
    source = graph.node(operands[0][0]) if len(operands) == 1 else None
    inner = [name]
    while (reader := only_reader(graph, inner[-1])) is not None:
        inner.append(reader)
        if full_name(task_function(graph, reader)) != f"{MODULE}.added":
            break
    last, output = task_function(graph, inner[-1]), graph.node(inner[-1])
    if source is None or output is None or full_name(last) != f"{MODULE}.finished":
        return None
    wide = output.size and PARTIAL_BYTES * math.prod(map(max, output.chunks)) >= WIDE
    if unsupported((source,), output, CARRIED) or not wide or _fused(graph, source):
        return None
    options = last.keywords
    axes, method = tuple(options["axis"]), function.keywords["method"]
    task = axes, options["keepdims"], method, options["kind"]
    piece = SumPiece(output, source, *task, inner=tuple(inner))
    fault = piece.fault()
    return piece if fault is None else Declined(output.name, fault)


def _fused(graph: ArrayGraph, source: ArrayNode) -> bool:
    """Whether the blocks of an array exist only within the tasks that sum them."""
    blockwise = isinstance(graph.layers.get(source.name), Blockwise)
    return blockwise and only_reader(graph, source.name) is not None


RULES = (
    Rule(full_name(DeferredLayer), own, "an operation of our own has its piece in its layer"),
    Rule("dask.array.routines._matmul", products.match, "products of blocks, summed by later ones"),
    Rule("dask.array.routines._tensordot", products.match, "the same, for dot and tensordot"),
    Rule("dask.array.einsumfuncs.chunk_einsum", products.match, "the same, for einsum"),
    Rule("dask.layers.ArrayOverlapLayer", overlaps.match, "each block with cells of neighbours"),
    Rule(MERGE, rechunks.match, "slices of blocks, concatenated to other chunks"),
    Rule(P2P, rechunks.match, "the same by messages between workers"),
    Rule(f"{MODULE}.partial_sum", summed, "partial sums by our functions, added by later layers"),
)
"""All rules."""


def find(graph: ArrayGraph, rules: Iterable[Rule] = RULES) -> Matches:
    """Try each rule on the layers at which its pieces start."""
    known: defaultdict[str, list[Rule]] = defaultdict(list)
    for rule in rules:
        known[rule.start].append(rule)
    pieces: list[Piece] = []
    declined: list[Declined] = []
    for name, layer in graph.layers.items():
        function = block_function(graph, name)
        start = full_name(type(layer) if function is None else function)
        tried = known.get(start) or known.get(name.rpartition("-")[0]) or ()
        for found in (rule.match(graph, name) for rule in tried):
            if isinstance(found, Declined):
                declined.append(found)
            elif found is not None and any(map(graph.is_out, found.layers)):
                declined.append(Declined(found.output.name, OPTED_OUT))
            elif found is not None:
                pieces.append(found)
    return Matches(tuple(pieces), tuple(declined))
