"""The bytes of the blocks of a graph, by their keys."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod
from typing import Any

import numpy as np
from dask.array.core import Array
from dask.highlevelgraph import HighLevelGraph

from dask_dgpu.batches.blocks import largest_nbytes
from graph_opt.dask_graph.layers import DeferredLayer, is_block
from graph_opt.dask_graph.parse import parse
from graph_opt.model.layout import ArrayNode

Key = Any

MOMENTS = 3
"""Most numbers for each element of a partial reduction: count, sum, and sum of squares."""


class Declared:
    """The bytes of blocks that Dask declares.

    ``views`` are the names of arrays whose blocks are parts of arrays that exist, ``loads`` those
    of arrays whose tasks load blocks, with the bytes that this takes beside a block. ``usual`` are
    the least bytes of other blocks.
    """

    def __init__(
        self, result: Array, views: Collection[str], loads: Mapping[str, int], usual: int
    ) -> None:
        self.views = frozenset(views)
        self.loads = loads
        self.usual = usual
        self._arrays = parse(_expanded(result.dask), result.__dask_keys__())
        self._largest: dict[str, int | None] = {}

    def nbytes(self, key: Key) -> int | None:
        """Return the bytes of a block, ``None`` if Dask does not declare them.

        Without an index they are those of the largest block of the array.
        """
        name = name_of(key)
        if name not in self._largest:
            self._largest[name] = self._of(name)
        node, index = self._arrays.node(name), key[1:] if isinstance(key, tuple) else ()
        if node is None or not index or self._is_partial(name) or self._largest[name] is None:
            return self._largest[name]
        if not is_block(node, index):
            return self._largest[name]
        return prod(node.block_shape(index)) * _itemsize(node)

    def widening(self, key: Key) -> float:
        """Return how many times larger a block is in double precision, 1 if nobody knows."""
        node = self._arrays.node(name_of(key))
        if node is None or not _itemsize(node):
            return 1.0
        return np.result_type(node.dtype, np.float64).itemsize / node.itemsize

    def _of(self, name: str) -> int | None:
        if self._is_partial(name):
            readers = self._arrays.dependents.get(name) or {name}
            return MOMENTS * max(self._largest_of(each) or 0 for each in readers)
        return self._largest_of(name)

    def _largest_of(self, name: str) -> int | None:
        node = self._arrays.node(name)
        known = node is not None and node.known and _itemsize(node)
        return largest_nbytes(node.chunks, _itemsize(node)) if node and known else None

    def _is_partial(self, name: str) -> bool:
        """Whether blocks are steps of a reduction; Dask declares the chunks of what it reads."""
        readers = self._arrays.dependents.get(name, set())
        return _is_aggregate(name) or (bool(readers) and all(map(_is_aggregate, readers)))


def _itemsize(node: ArrayNode) -> int:
    """Return the bytes of an element, 0 for structured dtypes, which have no name."""
    try:
        return node.itemsize
    except TypeError:
        return 0


def _expanded(graph: HighLevelGraph) -> HighLevelGraph:
    """Return a graph that also has the layers of plain Dask for our own operations."""
    layers = graph.layers.values()
    found = [layer.expanded.dask for layer in layers if isinstance(layer, DeferredLayer)]
    return HighLevelGraph.merge(*found, graph)


def name_of(key: Key) -> str:
    """Return the name of the array of a key; Dask appends axes to those of fused blocks."""
    return str(key[0] if isinstance(key, tuple) else key).partition("_.")[0]


def _is_aggregate(name: str) -> bool:
    return "-partial-" in name or "-aggregate-" in name
