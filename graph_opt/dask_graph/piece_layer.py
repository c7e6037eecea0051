"""Placeholder layer for a piece; ``emit`` replaces it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from dask.highlevelgraph import Layer

from graph_opt.dask_graph.internals import GraphNode
from graph_opt.model.layout import Index
from graph_opt.pieces.piece import Piece

Key = tuple[Any, ...]


class PieceLayer(Layer):
    """A piece, restricted to the blocks ``wanted`` by others, without tasks.

    By default all computed blocks are wanted.
    """

    def __init__(
        self,
        piece: Piece,
        wanted: frozenset[Index] | None = None,
        annotations: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(annotations=annotations)
        self.piece = piece
        self.wanted = frozenset(piece.computed) if wanted is None else wanted

    @property
    def waste(self) -> float:
        """Fraction of the computed blocks that is unused."""
        computed = len(self.piece.computed)
        return 1 - len(self.wanted) / computed if computed else 0.0

    def get_output_keys(self) -> set[Any]:
        """Return the keys of the wanted blocks."""
        return {(self.piece.output.name, *index) for index in self.wanted}

    def is_materialized(self) -> bool:
        """Never."""
        return False

    @property
    def has_legacy_tasks(self) -> bool:
        """Never."""
        return False

    def cull(
        self, keys: Collection[Any], all_hlg_keys: Collection[Any]
    ) -> tuple[Layer, Mapping[Any, set[Any]]]:
        """Keep the blocks in ``keys`` and their inputs."""
        name = self.piece.output.name
        wanted = frozenset(index for index in self.wanted if (name, *index) in keys)
        if not wanted:
            return self, {}
        layer = self
        if wanted != self.wanted:
            layer = PieceLayer(self.piece.restrict(wanted), wanted, self.annotations)
        read = {
            (node.name, *index)
            for node, indices in zip(layer.piece.inputs, layer.piece.staged, strict=True)
            for index in indices
        }
        return layer, dict.fromkeys(layer.get_output_keys(), read)

    def __getitem__(self, key: Any) -> GraphNode:
        raise KeyError(f"{self.piece.label} has no tasks before emit()")

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get_output_keys())

    def __len__(self) -> int:
        return len(self.wanted)
