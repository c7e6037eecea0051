"""Recognises Fourier transforms along chunked axes; their target is ``pencil_fft``.

Dask has no layers for them. ``dask_dgpu.fft`` makes one, which says what is done and
expands to plain tasks if it is left to Dask.
"""

from __future__ import annotations

from graph_opt.dask_graph.deferred import DeferredLayer
from graph_opt.dask_graph.parse import ArrayGraph
from graph_opt.dask_graph.pattern import unsupported
from graph_opt.model.node import ArrayNode, Declined
from graph_opt.pieces.fft import Fourier


def match(graph: ArrayGraph, name: str) -> Fourier | Declined | None:
    """Match the transform whose layer is ``name``; ``None`` is no transform."""
    layer = graph.layers[name]
    if not isinstance(layer, DeferredLayer) or not hasattr(layer.plan, "exchanges"):
        return None
    assert isinstance(layer.source, ArrayNode)
    reason = unsupported((layer.source,), layer.output)
    if reason is not None:
        return Declined(name, reason)
    piece = Fourier(layer.output, layer.source, layer.plan)
    fault = piece.fault()
    return piece if fault is None else Declined(name, fault)
