"""What functions on arrays share: checks of their arguments, and a layer for their result."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from numbers import Number
from typing import Any

import numpy as np
from dask.array.core import Array
from dask.highlevelgraph import HighLevelGraph
from dask.tokenize import tokenize
from dask.utils import typename

from dask_dgpu.arguments import sequence
from graph_opt.dask_graph.layers import DeferredLayer, Expand
from graph_opt.model.layout import CONTAINERS, ArrayNode, Chunks
from graph_opt.model.piece import Piece


def check_dtype(
    name: str, x: Any, *, kinds: str = "biufc", what: str = "real or complex numbers"
) -> None:
    """Raise unless the dtype of an array is of one of these kinds."""
    if np.dtype(x.dtype).kind not in kinds:
        raise TypeError(f"expected {name} to be of {what}, got {x.dtype}")


def check_chunk_sizes(name: str, x: Array, axes: Iterable[int] | None = None) -> None:
    """Raise unless all chunk sizes along some axes, by default all, are known."""
    for axis in range(x.ndim) if axes is None else axes:
        if math.isnan(x.shape[axis]):
            raise ValueError(
                f"expected {name} with known chunk sizes, got unknown ones along axis {axis}: "
                "compute_chunk_sizes() determines them"
            )


def per_axis(name: str, value: Any, ndim: int) -> tuple[Any, ...]:
    """Return one value for each axis, from these values or from one for all axes."""
    if isinstance(value, Number | str | bytes | None):
        return (value,) * ndim
    each = sequence(name, value, "one value, or one for each axis")
    if len(each) != ndim:
        raise ValueError(f"expected {name} to have one entry per axis, {ndim}, got {len(each)}")
    return each


def check_container(name: str, x: Array) -> None:
    """Raise unless the blocks of an array are NumPy or CuPy arrays."""
    container = typename(type(x._meta))
    if container not in CONTAINERS:
        raise TypeError(f"expected {name} with blocks of NumPy or CuPy, got {container}")


def deferred(
    name: str,
    sources: tuple[Array, ...],
    chunks: Chunks,
    dtype: str,
    token: Any,
    piece: Callable[[ArrayNode, tuple[ArrayNode, ...]], Piece],
    expand: Expand,
) -> Array:
    """Return the result of an operation on arrays, as one layer; ``name`` begins its keys.

    ``token`` is all that the result depends on besides its sources. ``piece(output, sources)``
    returns the operation on array nodes, ``expand`` the tasks of plain Dask; see
    :class:`~graph_opt.dask_graph.deferred.DeferredLayer`.
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
