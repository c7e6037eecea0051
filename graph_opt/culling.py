"""Culling that keeps the names of layers, and says what each of them reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from dask.highlevelgraph import HighLevelGraph, Layer

from graph_opt.depth_first import depth_first

Key = Any


@dataclass(frozen=True)
class Culled:
    """What is left of a graph.

    Parameters
    ----------
    graph : HighLevelGraph
        The layers that are needed, each with no more than the tasks that are.
    reads : dict of str to set of key
        The keys of other layers that each layer reads.
    needs : dict of str to mapping of key to set of key
        For each layer, what each of its tasks reads.
    """

    graph: HighLevelGraph
    reads: dict[str, set[Key]]
    needs: dict[str, Mapping[Key, set[Key]]]


def cull(graph: HighLevelGraph, keys: Collection[Key]) -> Culled:
    """Leave out what nobody needs who wants ``keys``.

    Dask's own does the same, but gives layers other names and forgets which of them
    depend on each other.
    """
    legacy = any(layer.has_legacy_tasks for layer in graph.layers.values())
    known: set[Key] = graph.get_all_external_keys() if legacy else set()
    needed = set(keys)
    layers: dict[str, Layer] = {}
    reads: dict[str, set[Key]] = {}
    needs: dict[str, Mapping[Key, set[Key]]] = {}
    for name in reversed(depth_first(graph.dependencies)):
        layer = graph.layers[name]
        wanted = needed.intersection(layer.get_output_keys())  # it goes through all it is given
        if wanted:
            layers[name], needs[name] = layer.cull(wanted, known)
            alike = {id(read): read for read in needs[name].values()}  # a piece has one set for all
            reads[name] = set().union(*alike.values()) - needs[name].keys()
            needed |= reads[name]
    between = {name: graph.dependencies[name] & layers.keys() for name in layers}
    return Culled(HighLevelGraph(layers, between), reads, needs)
