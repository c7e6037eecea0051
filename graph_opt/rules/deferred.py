"""Recognizes operations of our own: their layer has the piece."""

from __future__ import annotations

from graph_opt.dask_graph.deferred import DeferredLayer
from graph_opt.dask_graph.parse import ArrayGraph, unsupported
from graph_opt.model.layout import Declined
from graph_opt.pieces.piece import Piece


def match(graph: ArrayGraph, name: str) -> Piece | Declined | None:
    """Match the piece of the layer ``name``; ``None`` if Dask built the layer."""
    layer = graph.layers[name]
    if not isinstance(layer, DeferredLayer):
        return None
    piece = layer.piece
    reason = unsupported(piece.inputs, piece.output) or piece.fault()
    return piece if reason is None else Declined(name, reason)
