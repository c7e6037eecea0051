"""What the optimizer made of a graph."""

from __future__ import annotations

from dataclasses import dataclass

from dask.highlevelgraph import HighLevelGraph

from dask_dgpu.planner.predict import Prediction
from graph_opt.dask_graph.parse import ArrayGraph
from graph_opt.model.layout import Declined
from graph_opt.model.piece import Piece, Region


@dataclass(frozen=True)
class Rewriting:
    """A graph with gangs, and the decisions behind it.

    ``arrays`` are Dask's own layers, and ``found`` the pieces in them.
    """

    graph: HighLevelGraph
    arrays: ArrayGraph
    found: tuple[Piece, ...]
    regions: tuple[tuple[Region, Prediction], ...]
    declined: tuple[Declined, ...]

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The collectives of all gangs."""
        return tuple(piece for region, _ in self.regions for piece in region.pieces)
