"""Apply the rules: find the pieces that can run as a gang, and put them in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from dask.highlevelgraph import HighLevelGraph, Layer

from graph_opt.dask_graph.parse import ArrayGraph
from graph_opt.dask_graph.piece_layer import PieceLayer
from graph_opt.model.node import Declined
from graph_opt.pieces.piece import Piece

Rule = Callable[[ArrayGraph, str], Piece | Declined | None]
"""Match the piece whose first layer has this name; ``None`` if there is none."""


@dataclass(frozen=True)
class Matches:
    """What the rules found: pieces to rewrite, and pieces left to Dask."""

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
    """Put a layer for each piece in the place of those that Dask built."""
    layers: dict[str, Layer] = dict(graph.layers)
    dependencies: dict[str, set[str]] = {k: set(v) for k, v in graph.dependencies.items()}
    for piece in pieces:
        for name in piece.layers:
            del layers[name], dependencies[name]
        annotations = _annotations(graph.layers, piece)
        layers[piece.output.name] = PieceLayer(piece, annotations=annotations)
        dependencies[piece.output.name] = {node.name for node in piece.inputs}
    return HighLevelGraph(layers, dependencies)


def _annotations(layers: Mapping[str, Layer], piece: Piece) -> dict[str, object] | None:
    merged: dict[str, object] = {}
    for name in piece.layers:
        merged.update(layers[name].annotations or {})
    return merged or None
