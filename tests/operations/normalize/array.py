"""Arrays scaled to a largest absolute value of one: the function that users call."""

from __future__ import annotations

from dask.array.core import Array

from dask_dgpu.arguments import as_array
from graph_opt.dask_graph.layers import array_of, deferred
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


def expand(piece: NormalizePiece) -> Array:
    """Return the result by plain Dask, for graphs without a gang."""
    x = array_of(piece.source)
    return x / abs(x).max()
