"""Arrays scaled to a largest absolute value of one: the function that users call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask._task_spec import convert_legacy_graph
from dask.array.core import Array

from dask_dgpu.arguments import as_array
from graph_opt.dask_graph.layers import deferred
from graph_opt.model.layout import ArrayNode
from tests.operations.normalize.operation import NormalizePiece


def normalize(x: Array) -> Array:
    """Divide an array by its largest absolute value.

    Parameters
    ----------
    x : dask.array.Array
        The array, of a floating-point dtype.
    """
    x = as_array("x", x)

    def piece(output: ArrayNode, sources: tuple[ArrayNode, ...]) -> NormalizePiece:
        (source,) = sources
        return NormalizePiece(output, source)

    return deferred("normalize", (x,), x.chunks, x.dtype.name, (), piece, expand)


def expand(piece: NormalizePiece) -> tuple[str, Mapping[Any, Any]]:
    """Return the tasks of plain Dask, for graphs without a gang."""
    source = piece.source
    x = Array({}, source.name, source.chunks, dtype=source.dtype)
    y = x / abs(x).max()
    read = {(source.name, *index) for index in source.indices}
    return y.name, convert_legacy_graph(dict(y.dask), all_keys={*y.dask, *read})
