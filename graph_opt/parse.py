"""From Dask's layers to array nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from dask.core import flatten, reverse_dict
from dask.highlevelgraph import HighLevelGraph, Layer

from graph_opt.node import ArrayNode


@dataclass(frozen=True)
class ArrayGraph:
    """A high-level graph read as arrays.

    Parameters
    ----------
    layers : mapping of str to Layer
        Dask's own layers.
    dependencies : mapping of str to set of str
        Which layers a layer reads.
    requested : frozenset of str
        Names of the arrays (or single keys) that somebody wants.
    """

    layers: Mapping[str, Layer]
    dependencies: Mapping[str, set[str]]
    requested: frozenset[str]

    @cached_property
    def dependents(self) -> Mapping[str, set[str]]:
        """Which layers read a layer."""
        readers: Mapping[str, set[str]] = reverse_dict(self.dependencies)
        return readers

    def node(self, name: str) -> ArrayNode | None:
        """Return what is known of the array of this name, ``None`` if it is none."""
        layer = self.layers.get(name)
        facts = getattr(layer, "collection_annotations", None) or {}
        if facts.get("type") != "dask.array.core.Array":
            return None
        return ArrayNode(
            name=name,
            chunks=tuple(tuple(sizes) for sizes in facts["chunks"]),
            dtype=str(facts["dtype"]),
            container=str(facts["chunk_type"]),
        )


def parse(graph: HighLevelGraph, keys: Iterable[object]) -> ArrayGraph:
    """Read a high-level graph; nothing is materialised."""
    requested = frozenset(
        str(key[0] if isinstance(key, tuple) else key) for key in flatten(list(keys))
    )
    return ArrayGraph(graph.layers, graph.dependencies, requested)
