"""What the optimizer reads, and what it made of a graph."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from dask.highlevelgraph import HighLevelGraph

from dask_dgpu.environment.facts import ClusterFacts
from dask_dgpu.kernels.scan import FUNCTIONS
from dask_dgpu.planner.parts import Lack
from dask_dgpu.planner.plain import Plain, plain_graph, rest_of
from dask_dgpu.planner.predict import Prediction, blocks_of
from graph_opt.dask_graph.exchanging import with_functions
from graph_opt.dask_graph.parse import ArrayGraph, parse
from graph_opt.model.layout import Declined
from graph_opt.model.piece import Piece, Region


def read(
    graph: HighLevelGraph, keys: Iterable[Any], fuse: bool
) -> tuple[HighLevelGraph, ArrayGraph]:
    """Return a graph as it will run if nothing is inserted, and its arrays.

    With ``fuse``, our kernels take the place of functions that CuPy computes slowly.
    """
    graph = with_functions(graph, FUNCTIONS) if fuse else graph
    return graph, parse(graph, keys, fuse)


@dataclass(frozen=True)
class Rewriting:
    """A graph with gangs, and the decisions behind it.

    ``source`` is the graph that was read, ``arrays`` its layers, and ``found`` the pieces in them.
    ``declined`` are pieces, and ``left`` are further layers, with the reasons why no gang computes
    them. ``lacks`` has the pieces that do not fit, by name. With ``own_left`` all of Dask's own
    layers are left to it, because the graph runs in one process.
    """

    graph: HighLevelGraph
    source: HighLevelGraph
    arrays: ArrayGraph
    found: tuple[Piece, ...]
    regions: tuple[tuple[Region, Prediction], ...]
    declined: tuple[Declined, ...]
    left: Mapping[str, str]
    lacks: Mapping[str, Lack] = field(default_factory=dict)
    own_left: bool = False

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The collectives of all gangs."""
        return tuple(piece for region, _ in self.regions for piece in region.pieces)

    def totals(
        self,
        keys: Collection[Any],
        workers: int,
        facts: ClusterFacts,
    ) -> tuple[Plain, Plain]:
        """Predict the source as it will run, and in plain Dask.

        Without a gang, kernels still do the work of several of Dask's layers. The layers of the
        former are those outside of gangs. With gangs, both sum the predictions of these that have
        decided for them and those of the rest. Copies to GPUs count in both.
        """
        graph, wanted, regions = self.source, set(keys), [region for region, _ in self.regions]
        unfused = replace(self.arrays, fused=False)
        if not regions:
            rewritten = graph if self.found else self.graph  # pieces stand for layers of the former
            ours = plain_graph(rewritten, self.arrays, self.found, wanted, workers, facts)
            return ours, plain_graph(graph, unfused, self.found, wanted, workers, facts)
        made = set(chain.from_iterable(map(made_by, regions)))
        left = [piece for piece in self.found if piece.output.name not in made]
        wanted |= {key for region in regions for key in blocks_of(region)}
        rest = rest_of(graph, regions)
        ours, plain = (
            plain_graph(rest, arrays, left, wanted, workers, facts)
            for arrays in (self.arrays, unfused)
        )
        for _, each in self.regions:
            ours = ours.plus(each.tasks, each.seconds)
            plain = plain.plus(each.dask_tasks, each.dask_seconds + each.host_seconds)
        return ours, plain


def made_by(region: Region) -> Iterator[str]:
    """Yield the layers that a region computes."""
    for member in region.members:
        yield from member.layers if isinstance(member, Piece) else ()
        yield member.output.name
    for work in region.works:
        yield work.output.name
