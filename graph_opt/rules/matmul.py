"""Recognizes products of two matrices; their target is the ``summa`` algorithm.

Dask builds three or more layers for one product of two matrices::

    da.matmul, @       _matmul -> chunk_sum -> _chunk_sum-partial ... -> _chunk_sum-aggregate
      K in one chunk   _matmul -> getitem (drops the contracted axis)
    da.dot             _tensordot -> sum -> sum-partial ... -> sum-aggregate

The first layer is blockwise with one axis for the contraction; the last is the result. For
one-dimensional operands Dask adds other layers around these.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

from dask.blockwise import Blockwise

from graph_opt.dask_graph.internals import _matmul, _tensordot
from graph_opt.dask_graph.parse import (
    ArrayGraph,
    array_operands,
    block_function,
    follow,
    unsupported,
)
from graph_opt.model.layout import ArrayNode, Declined
from graph_opt.pieces.matmul import MatmulPiece

REDUCTIONS = (
    (_matmul, ("chunk_sum-", "_chunk_sum-partial-", "_chunk_sum-aggregate-", "getitem-")),
    (_tensordot, ("sum-", "sum-partial-", "sum-aggregate-")),
)


def match(graph: ArrayGraph, name: str) -> MatmulPiece | Declined | None:
    """Match the product whose blockwise layer is ``name``; ``None`` is no product."""
    function = block_function(graph, name)
    reductions = [names for product, names in REDUCTIONS if product is function]
    if not reductions:
        return None
    operands = array_operands(graph, name)
    nodes = [graph.node(operand) for operand, _ in operands]
    if len(nodes) != 2 or nodes[0] is None or nodes[1] is None:
        return Declined(name, "an operand is not a Dask array with known facts")
    left, right = nodes[0], nodes[1]
    if left.ndim != 2 or right.ndim != 2:
        return Declined(name, f"operands of {left.ndim} and {right.ndim} axes are not matrices")
    (rows, inner), (inner_right, columns) = (index for _, index in operands)
    if inner != inner_right or rows == columns or not _contracts_plainly(graph, name):
        return Declined(name, "the contraction is not that of a plain matrix product")
    passed = follow(graph, name, reductions[0], ndim=2)
    output = graph.node(passed[-1]) if passed else None
    if output is None:
        return Declined(name, "other layers than the sum read the partial products")
    if not output.known:
        return Declined(output.name, "chunk sizes are unknown")
    if (left.grid[0], right.grid[1]) != output.grid:
        return Declined(output.name, "the blocks of the result differ from those of the operands")
    left, right = _up_to_date(left, right, output)
    reason = unsupported((left, right), output)
    if reason is None and left.container != right.container:
        reason = "one operand has NumPy blocks and the other CuPy blocks"
    if reason is not None:
        return Declined(output.name, reason)
    return MatmulPiece(output, left, right, inner=(name, *passed))


def _up_to_date(
    left: ArrayNode, right: ArrayNode, output: ArrayNode
) -> tuple[ArrayNode, ArrayNode]:
    """Correct the operands' chunk sizes by those of the product, which Dask declared last.

    ``compute_chunk_sizes``, for example, does not update the layer of its array. Only the
    operands have the sizes along the contraction, and Dask has made these equal.
    """
    inner, inner_right = left.chunks[1], right.chunks[0]
    # Dask declares one value for a reduction with several, so (1,) may be more
    reduced = all("-aggregate-" in node.name for node in (left, right)) and inner == (1,)
    if any(map(math.isnan, inner)):
        inner = inner_right
    elif reduced or (not any(map(math.isnan, inner_right)) and inner != inner_right):
        inner = (cast(int, math.nan),) * len(inner)  # one of the two is out of date
    rows, columns = output.chunks
    return replace(left, chunks=(rows, inner)), replace(right, chunks=(inner, columns))


def _contracts_plainly(graph: ArrayGraph, name: str) -> bool:
    layer = graph.layers[name]
    assert isinstance(layer, Blockwise)  # for the type checker: it has a block function
    axes = layer.task.kwargs.get("axes")
    if axes is None:
        return True
    left, right = (tuple(getattr(side, "args", side)) for side in getattr(axes, "args", axes))
    return left in ((1,), (-1,)) and right in ((0,), (-2,)) and not layer.concatenate
