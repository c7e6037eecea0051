"""Arrays from operations of dask_dgpu, as one layer each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from dask.array.core import Array
from dask.highlevelgraph import HighLevelGraph
from dask.tokenize import tokenize
from dask.utils import typename

from graph_opt.dask_graph.layers import DeferredLayer, Expand
from graph_opt.model.layout import ArrayNode, Chunks
from graph_opt.model.piece import Piece


def deferred(
    name: str,
    sources: tuple[Array, ...],
    chunks: Chunks,
    dtype: str,
    token: Any,
    piece: Callable[[ArrayNode, tuple[ArrayNode, ...]], Piece],
    expand: Expand,
) -> Array:
    """Return the result of an operation on arrays, as one layer.

    Parameters
    ----------
    name : str
        Prefix of the output's keys.
    sources : tuple of dask.array.Array
        The arrays that are read.
    chunks : tuple of tuple of int
        Chunk sizes of the output.
    dtype : str
        Of the output.
    token : object
        All that the output depends on besides its sources.
    piece : callable
        ``piece(output, sources)`` returns the operation on array nodes.
    expand : callable
        The tasks of plain Dask; see :class:`~graph_opt.dask_graph.layers.DeferredLayer`.
    """
    key = f"{name}-{tokenize(*(x.name for x in sources), token)}"
    meta = np.empty_like(sources[0]._meta, dtype=dtype)
    container = typename(type(meta))
    nodes = tuple(ArrayNode(x.name, x.chunks, x.dtype.name, container) for x in sources)
    layer = DeferredLayer(piece(ArrayNode(key, chunks, dtype, container), nodes), expand)
    graph = HighLevelGraph.merge(*(x.dask for x in sources))
    names = {name for x in sources for name in x.__dask_layers__()}
    graph = HighLevelGraph({**graph.layers, key: layer}, {**graph.dependencies, key: names})
    return Array(graph, key, chunks, dtype=dtype, meta=meta)
