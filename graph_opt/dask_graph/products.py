"""Finds contractions of two arrays, and among them products of matrices, in Dask's layers.

Dask builds a blockwise layer with partial products, and sums them over the contracted axes::

    da.matmul, @       _matmul -> _chunk_sum (blockwise) -> _chunk_sum ... -> _chunk_sum
      K in one chunk   _matmul -> getitem (drops the contracted axis)
    da.dot, tensordot  _tensordot   -> sum (blockwise) -> sum ... -> sum
    da.einsum          chunk_einsum -> sum (blockwise) -> sum ... -> sum

For one-dimensional operands Dask adds other layers around these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import dask.array as da
import numpy as np
from dask.array.core import Array
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

from graph_opt.dask_graph.internals import (
    ONE_VALUE,
    Alias,
    _chunk_sum,
    _matmul,
    _tensordot,
    chunk_einsum,
    getitem,
)
from graph_opt.dask_graph.layers import array_of
from graph_opt.dask_graph.parse import (
    ArrayGraph,
    array_operands,
    block_function,
    only_reader,
    task_function,
    unsupported,
    unwrapped,
)
from graph_opt.model.layout import ArrayNode, Declined
from graph_opt.model.subscripts import REPEATED, Subscripts
from graph_opt.pieces.contract import ContractPiece
from graph_opt.pieces.matmul import MATRICES, MatmulPiece, ProductPiece

MATMUL = da.matmul
"""Dask's own function: settings may replace it."""

SUMS: Mapping[Any, tuple[Any, ...]] = {
    _matmul: (_chunk_sum, getitem),
    _tensordot: (np.sum,),
    chunk_einsum: (np.sum,),
}
"""The functions of the layers that sum the partial products of a function."""


def match(graph: ArrayGraph, name: str) -> ProductPiece | Declined | None:
    """Match the contraction whose blockwise layer is ``name``; ``None`` is none."""
    function, operands = block_function(graph, name), array_operands(graph, name)
    if len(operands) < 2:
        return None
    if len(operands) > 2:
        return Declined(name, f"an einsum of {len(operands)} operands is no product of two")
    left, right = (graph.node(operand) for operand, _ in operands)
    if left is None or right is None:
        return Declined(name, "an operand is not a Dask array with known facts")
    indices = operands[0][1], operands[1][1], _kept(graph, name)
    reason = _subscripts(indices).fault or _options(graph, name, left, right)
    if reason is not None:
        return Declined(name, reason)
    passed = _summed(graph, name, SUMS[function], len(indices[2]))
    output = graph.node(passed[-1]) if passed else None
    if output is None:
        return Declined(name, "other layers than the sum read the partial products")
    if not output.known:
        return Declined(output.name, "chunk sizes are unknown")
    subscripts = _subscripts(indices, left, right, output)
    reason = _stretched(subscripts, left, right)
    left, right = _up_to_date(subscripts, left, right, output)
    reason = reason or unsupported((left, right), output)
    if reason is None and left.container != right.container:
        reason = "one operand has NumPy blocks and the other CuPy blocks"
    if reason is not None:
        return Declined(output.name, reason)
    inner = (name, *passed)
    piece: ProductPiece
    if subscripts == MATRICES and function is not chunk_einsum:
        piece = MatmulPiece(output, left, right, inner=inner)
    else:
        loops = function is chunk_einsum and not _keywords(graph, name)["optimize"]
        piece = ContractPiece(output, left, right, subscripts, inner=inner, loops=loops)
    if not piece.fits:
        return Declined(output.name, "the blocks of the result differ from those of the operands")
    return piece


def _kept(graph: ArrayGraph, name: str) -> tuple[Any, ...]:
    """Return the index of the result: that of the partial products without the summed ones."""
    layer: Any = graph.layers[name]
    index, function = tuple(layer.output_indices), block_function(graph, name)
    if function is _matmul:
        return (*index[:-2], index[-1])
    if function is chunk_einsum:
        return index[: len(index) - _keywords(graph, name)["ncontract_inds"]]
    left, right = (each for _, each in array_operands(graph, name))
    return tuple(each for each in index if each not in left or each not in right)


def _options(graph: ArrayGraph, name: str, left: ArrayNode, right: ArrayNode) -> str | None:
    """Return which option of the call is not supported, ``None`` if all are."""
    layer: Any = graph.layers[name]
    options = _keywords(graph, name)
    if layer.concatenate:
        return "Dask concatenates sparse blocks"
    axes = options.get("axes")
    if axes is not None:
        first, second = (getattr(side, "args", side) for side in getattr(axes, "args", axes))
        if len(first) != len(second):
            return "the operands have different numbers of axes to sum over"
    dtype = options.get("kernel_dtype")
    if dtype is not None and np.dtype(dtype) != np.result_type(left.dtype, right.dtype):
        return f"dtype {dtype} is not that of the product"
    return None


def _keywords(graph: ArrayGraph, name: str) -> dict[str, Any]:
    layer: Any = graph.layers[name]
    keywords: dict[str, Any] = layer.task.kwargs
    return keywords


def _summed(graph: ArrayGraph, name: str, functions: Sequence[Any], ndim: int) -> list[str]:
    """Return the chain of only readers with these functions, up to an array of ``ndim`` axes.

    Nothing if a layer does not fit.
    """
    passed: list[str] = []
    reader = only_reader(graph, name)
    while reader is not None and unwrapped(task_function(graph, reader)) in functions:
        node = graph.node(reader)
        if node is None:
            return []
        passed.append(reader)
        if node.ndim == ndim:
            return passed
        reader = only_reader(graph, reader)
    return []


def _subscripts(indices: Sequence[tuple[Any, ...]], *nodes: ArrayNode) -> Subscripts:
    """Name indices by letters; given the arrays, find the axes of length 1 that are repeated."""
    names: dict[Any, str] = {}
    for each in (each for index in indices for each in index):
        names.setdefault(each, chr(ord("a") + len(names)))
    left, right, output = ([names[each] for each in index] for index in indices)
    if nodes:
        chunks = dict(zip(output, nodes[2].chunks, strict=True))
        for letters, others, node in ((left, right, nodes[0]), (right, left, nodes[1])):
            for axis, letter in enumerate(letters):
                if letter not in chunks or letter not in others or node.chunks[axis] != (1,):
                    continue
                if chunks[letter] != (1,) or letters is right:
                    letters[axis] = REPEATED
    return Subscripts("".join(left), "".join(right), "".join(output))


def _stretched(subscripts: Subscripts, left: ArrayNode, right: ArrayNode) -> str | None:
    """Return which summed axis has length 1 in one operand alone, ``None`` if none has."""
    for letter in subscripts.inner:
        axes = subscripts.left.index(letter), subscripts.right.index(letter)
        lengths = [sum(node.chunks[k]) for node, k in zip((left, right), axes, strict=True)]
        stale = any(ONE_VALUE in node.name for node in (left, right))
        if 1 in lengths and max(lengths) > 1 and not stale:
            return f"an axis of length 1 is summed against one of length {max(lengths)}"
    return None


def _up_to_date(
    subscripts: Subscripts, left: ArrayNode, right: ArrayNode, output: ArrayNode
) -> tuple[ArrayNode, ArrayNode]:
    """Correct the operands' chunk sizes by those of the result, which Dask declared last.

    ``compute_chunk_sizes``, for example, does not update the layer of its array. Only the
    operands have the sizes along the contraction, and Dask has made these equal.
    """
    known = dict(zip(subscripts.output, output.chunks, strict=True))
    for letter in subscripts.inner:
        axes = subscripts.left.index(letter), subscripts.right.index(letter)
        known[letter] = _inner_chunks(left, right, axes)

    def corrected(node: ArrayNode, letters: str) -> ArrayNode:
        arrays = []
        for letter, sizes in zip(letters, node.chunks, strict=True):
            right_size = len(known.get(letter, ())) == len(sizes)
            arrays.append(known[letter] if right_size else sizes)
        return replace(node, chunks=tuple(arrays))

    return corrected(left, subscripts.left), corrected(right, subscripts.right)


def _inner_chunks(left: ArrayNode, right: ArrayNode, axes: tuple[int, int]) -> tuple[int, ...]:
    """Return the chunk sizes of an axis of both operands, NaN if they are out of date."""
    sizes, others = left.chunks[axes[0]], right.chunks[axes[1]]
    reduced = all(ONE_VALUE in node.name for node in (left, right)) and sizes == (1,)
    if any(map(math.isnan, sizes)):
        return others
    if reduced or (not any(map(math.isnan, others)) and sizes != others):
        return (cast(int, math.nan),) * len(sizes)
    return sizes


def with_plain(graph: HighLevelGraph, piece: ProductPiece) -> HighLevelGraph:
    """Add a product by plain Dask to a graph, with a last layer of the name of the output."""
    product, name = _plain(piece), piece.output.name
    blocks = {(name, *at): Alias((name, *at), (product.name, *at)) for at in piece.output.indices}
    layers = {**product.dask.layers, name: MaterializedLayer(blocks)}
    needed = {**product.dask.dependencies, name: {product.name}}
    return HighLevelGraph({**graph.layers, **layers}, {**graph.dependencies, **needed})


def _plain(piece: ProductPiece) -> Array:
    """Return the same product by plain Dask, with all blocks of the output."""
    left, right = (_operand(piece, which) for which in (0, 1))
    if not isinstance(piece, ContractPiece):
        product: Array = MATMUL(left, right)
        return product
    subscripts = piece.subscripts
    left, right = (
        operand[tuple(0 if letter == REPEATED else slice(None) for letter in letters)]
        for operand, letters in ((left, subscripts.left), (right, subscripts.right))
    )
    contraction: Array = da.einsum(str(subscripts).replace(REPEATED, ""), left, right)
    return contraction


def _operand(piece: ProductPiece, which: int) -> Array:
    """Return an operand for plain Dask: without its graph, and only with multiplied blocks."""
    x, axis = array_of(piece.inputs[which]), piece.contracted[which]
    if piece.depth is None:
        return x
    operand: Array = x.blocks[(*(slice(None),) * axis, [*piece.depth])]
    return operand
