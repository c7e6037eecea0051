"""Recognises sweeps of stencils; their targets are ``stencil`` and ``jacobi``.

Dask has no layers for them. ``dask_dgpu.stencil`` and ``dask_dgpu.jacobi`` make them; they
say what is done and expand to plain tasks if they are left to Dask.
"""

from __future__ import annotations

from graph_opt.dask_graph.deferred import DeferredLayer
from graph_opt.dask_graph.parse import ArrayGraph
from graph_opt.dask_graph.pattern import unsupported
from graph_opt.model.node import ArrayNode, Declined
from graph_opt.pieces.stencil import Sweeping


def match(graph: ArrayGraph, name: str) -> Sweeping | Declined | None:
    """Match the sweeps whose layer is ``name``; ``None`` is none."""
    layer = graph.layers[name]
    if not isinstance(layer, DeferredLayer) or not hasattr(layer.plan, "operations"):
        return None
    sources = (layer.source,) if isinstance(layer.source, ArrayNode) else tuple(layer.source)
    reason = unsupported(sources, layer.output)
    if reason is not None:
        return Declined(name, reason)
    piece = Sweeping(layer.output, sources, layer.plan)
    fault = piece.fault()
    return piece if fault is None else Declined(name, fault)
