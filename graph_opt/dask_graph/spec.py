"""Checks of a graph after each pass."""

from __future__ import annotations

from dask.highlevelgraph import HighLevelGraph

from graph_opt.dask_graph.piece_layer import PieceLayer


class IllegalGraphError(Exception):
    """A pass returned an invalid graph."""


def check(graph: HighLevelGraph) -> HighLevelGraph:
    """Return ``graph`` if it is legal, raise :class:`IllegalGraphError` if not."""
    for name, needed in graph.dependencies.items():
        if name not in graph.layers:
            raise IllegalGraphError(f"layer {name} has dependencies but does not exist")
        missing = needed - graph.layers.keys()
        if missing:
            raise IllegalGraphError(f"layer {name} reads {sorted(missing)}, which do not exist")
    for layer in graph.layers.values():
        if isinstance(layer, PieceLayer):
            fault = layer.piece.fault()
            if fault is None and not layer.wanted <= set(layer.piece.computed):
                fault = "blocks are wanted that are not computed"
            if fault is not None:
                raise IllegalGraphError(f"{layer.piece.output.name}: {fault}")
    return graph
