"""Read Dask's layers as arrays."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from dask.blockwise import Blockwise
from dask.core import flatten, reverse_dict
from dask.highlevelgraph import HighLevelGraph, Layer

from graph_opt.dask_graph.internals import getitem_variadic
from graph_opt.model.node import ArrayNode, Chunks


@dataclass(frozen=True)
class ArrayGraph:
    """Dask's own layers read as arrays.

    ``dependencies`` are the layers that each layer reads, and ``requested`` the names of the
    requested arrays (or single keys).
    """

    layers: Mapping[str, Layer]
    dependencies: Mapping[str, set[str]]
    requested: frozenset[str]

    @cached_property
    def dependents(self) -> Mapping[str, set[str]]:
        """The readers of each layer."""
        readers: Mapping[str, set[str]] = reverse_dict(self.dependencies)
        return readers

    def node(self, name: str) -> ArrayNode | None:
        """Return the array of this name, ``None`` if Dask declares none."""
        if name not in self._nodes:
            self._nodes[name] = self._node(name)
        return self._nodes[name]

    @cached_property
    def _nodes(self) -> dict[str, ArrayNode | None]:
        """Cache of :meth:`node`: every rule looks at the arrays around a layer."""
        return {}

    def _node(self, name: str) -> ArrayNode | None:
        layer = self.layers.get(name)
        facts = getattr(layer, "collection_annotations", None) or {}
        if facts.get("type") != "dask.array.core.Array" or _repeats(layer, facts["chunks"]):
            return None
        return ArrayNode(
            name=name,
            chunks=_chunks(layer, facts["chunks"]),
            dtype=_spelled(facts["dtype"]),
            container=str(facts["chunk_type"]),
        )


def _repeats(layer: Layer | None, declared: Chunks) -> bool:
    """Whether an array has more blocks than its layer.

    Dask broadcasts along an axis of chunks (1, 0), so its one block appears twice.
    """
    return isinstance(layer, Blockwise) and any(
        len(sizes) != layer.dims[axis]
        for sizes, axis in zip(declared, layer.output_indices, strict=True)
    )


@lru_cache(maxsize=64)
def _spelled(dtype: Any) -> str:
    """Return the name of a dtype; NumPy takes as long for it as for a small sum."""
    return str(dtype)


def _chunks(layer: Layer | None, declared: Chunks) -> Chunks:
    """Return the chunk sizes, NaN if those of the layer are out of date.

    Dask records them before it knows that a mask makes them unknown.
    """
    if isinstance(layer, Blockwise) and getattr(layer.task, "func", None) is getitem_variadic:
        unknown: Any = math.nan
        return tuple((unknown,) * len(sizes) for sizes in declared)
    return tuple(map(tuple, declared))


def parse(graph: HighLevelGraph, keys: Iterable[object]) -> ArrayGraph:
    """Read a high-level graph without materializing layers."""
    requested = frozenset(
        str(key[0] if isinstance(key, tuple) else key) for key in flatten(list(keys))
    )
    return ArrayGraph(graph.layers, graph.dependencies, requested)
