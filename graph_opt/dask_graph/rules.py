"""The rules: where in Dask's layers each piece starts, and the function that finds it there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from graph_opt.dask_graph import overlaps, products, rechunks
from graph_opt.dask_graph.internals import MERGE, P2P
from graph_opt.dask_graph.layers import DeferredLayer
from graph_opt.dask_graph.parse import (
    ArrayGraph,
    block_function,
    full_name,
    unsupported,
)
from graph_opt.model.layout import Declined
from graph_opt.model.piece import Piece
from graph_opt.model.reader import OPTED_OUT, Matches

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
    reason = unsupported(piece.inputs, piece.output)
    return piece if reason is None else Declined(name, reason)


RULES = (
    Rule(full_name(DeferredLayer), own, "an operation of our own has its piece in its layer"),
    Rule("dask.array.routines._matmul", products.match, "products of blocks, summed by later ones"),
    Rule("dask.array.routines._tensordot", products.match, "the same, for dot and tensordot"),
    Rule("dask.array.einsumfuncs.chunk_einsum", products.match, "the same, for einsum"),
    Rule("dask.layers.ArrayOverlapLayer", overlaps.match, "each block with cells of neighbours"),
    Rule(MERGE, rechunks.match, "slices of blocks, concatenated to other chunks"),
    Rule(P2P, rechunks.match, "the same by messages between workers"),
)
"""All rules."""


def find(graph: ArrayGraph) -> Matches:
    """Try each rule on the layers at which its pieces start."""
    known = {rule.start: rule for rule in RULES}
    pieces: list[Piece] = []
    declined: list[Declined] = []
    for name, layer in graph.layers.items():
        function = block_function(graph, name)
        start = full_name(type(layer) if function is None else function)
        rule = known.get(start) or known.get(name.rpartition("-")[0])
        matched = None if rule is None else rule.match(graph, name)
        if isinstance(matched, Declined):
            declined.append(matched)
        elif matched is not None and any(map(graph.is_out, matched.layers)):
            declined.append(Declined(matched.output.name, OPTED_OUT))
        elif matched is not None:
            pieces.append(matched)
    return Matches(tuple(pieces), tuple(declined))
