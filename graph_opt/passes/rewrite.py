"""Apply the rules: find pieces, and replace Dask's layers by them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dask.highlevelgraph import HighLevelGraph, Layer

from graph_opt.dask_graph.parse import ArrayGraph
from graph_opt.dask_graph.piece_layer import PieceLayer
from graph_opt.model.layout import Declined
from graph_opt.pieces.piece import Piece

Rule = Callable[[ArrayGraph, str], Piece | Declined | None]
"""Returns the piece whose first layer has this name, ``None`` if there is none."""


@dataclass(frozen=True)
class Matches:
    """Pieces to rewrite, and pieces that stay with Dask."""

    pieces: tuple[Piece, ...]
    declined: tuple[Declined, ...]


def find(graph: ArrayGraph, rules: Iterable[Rule]) -> Matches:
    """Try every rule, in this order, on every layer."""
    pieces: list[Piece] = []
    declined: list[Declined] = []
    tried = tuple(rules)
    for name in graph.layers:
        for rule in tried:
            found = rule(graph, name)
            if isinstance(found, Declined):
                declined.append(found)
            elif found is not None:
                pieces.append(found)
    return Matches(tuple(pieces), tuple(declined))


def replace(graph: HighLevelGraph, pieces: Iterable[Piece]) -> HighLevelGraph:
    """Replace the layers of each piece by a :class:`PieceLayer`."""
    layers: dict[str, Layer] = dict(graph.layers)
    dependencies: dict[str, set[str]] = {k: set(v) for k, v in graph.dependencies.items()}
    for piece in pieces:
        annotations: dict[str, object] = {}
        for name in piece.layers:
            annotations.update(layers.pop(name).annotations or {})
            del dependencies[name]
        layers[piece.output.name] = PieceLayer(piece, annotations=annotations or None)
        dependencies[piece.output.name] = {node.name for node in piece.inputs}
    return HighLevelGraph(layers, dependencies)


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
