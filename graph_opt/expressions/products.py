"""Products as one expression each: dask_array's own functions build up to eight."""

from __future__ import annotations

from functools import cached_property, wraps
from itertools import zip_longest
from math import isnan
from typing import Any, ClassVar

import numpy as np
from dask_array._collection import Array, asanyarray, asarray
from dask_array._expr import ArrayExpr
from dask_array._new_collection import new_collection
from dask_array._utils import meta_from_array
from dask_array.linalg._tensordot import matmul as own_matmul
from dask_array.linalg._tensordot import tensordot as own_tensordot

from graph_opt.dask_graph.functions import is_block

Chunks = tuple[tuple[int, ...], ...]


class Product(ArrayExpr):
    """A product by ``matmul``, or by ``tensordot`` along ``axes``; dask_array's own as tasks."""

    _parameters: ClassVar = ["left", "right", "axes"]
    _defaults: ClassVar = {"axes": None}

    @cached_property
    def _meta(self) -> Any:
        dtype = np.result_type(self.left.dtype, self.right.dtype)
        return meta_from_array(self.left._meta, len(self.chunks), dtype)

    @cached_property
    def chunks(self) -> Any:
        """Of the operands."""
        left, right = self.left.chunks, self.right.chunks
        if self.axes is None:
            return _multiplied(left, right)
        both = zip((left, right), self.axes, strict=True)
        return tuple(c for each, axes in both for i, c in enumerate(each) if i not in axes)

    def _simplify_down(self) -> ArrayExpr:
        operands = new_collection(self.left), new_collection(self.right)
        own = own_matmul(*operands) if self.axes is None else own_tensordot(*operands, self.axes)
        expression: ArrayExpr = own.expr
        return expression

    _lower = _simplify_down


@wraps(own_matmul)
def matmul(a: Any, b: Any) -> Any:
    """Return a product as one expression, if its arrays are usual ones."""
    a, b = asanyarray(a), asanyarray(b)
    if _is_usual(a, b) and a.ndim and b.ndim:
        chunks = _multiplied(a.chunks, b.chunks)
        if chunks is not None and a.shape[-1] == b.shape[max(b.ndim - 2, 0)]:
            return new_collection(Product(a.expr, b.expr))
    return own_matmul(a, b)


@wraps(own_tensordot)
def tensordot(lhs: Any, rhs: Any, axes: Any = 2) -> Any:
    """Return a contraction as one expression, if its arrays are usual ones."""
    lhs, rhs = (each if isinstance(each, Array) else asarray(each) for each in (lhs, rhs))
    if _is_usual(lhs, rhs):
        pairs = _pairs(axes, lhs.ndim, rhs.ndim)
        if pairs and all(lhs.shape[left] == rhs.shape[right] for left, right in pairs):
            left, right = zip(*pairs, strict=True)
            return new_collection(Product(lhs.expr, rhs.expr, (left, right)))
    return own_tensordot(lhs, rhs, axes)


def _is_usual(a: Array, b: Array) -> bool:
    """Whether arrays have blocks of NumPy or CuPy, known chunks, and sums of the same dtype."""
    dtype = np.result_type(a.dtype, b.dtype)
    return (
        (dtype.kind in "fc" or dtype in (np.int64, np.uint64))
        and type(a._meta) is type(b._meta)
        and is_block(a._meta)
        and not isnan(sum(a.shape) + sum(b.shape))
    )


def _multiplied(left: Chunks, right: Chunks) -> Chunks | None:
    """Return the chunks of stacks of products, ``None`` if those of the stacks differ."""
    stacks: list[tuple[int, ...]] = []
    for sizes, others in zip_longest(left[-3::-1], right[-3::-1], fillvalue=(1,)):
        if sizes != others and (1,) not in (sizes, others):
            return None
        stacks.append(others if sizes == (1,) else sizes)
    return (*stacks[::-1], *left[-2:-1], *(right[-1:] if len(right) > 1 else ()))


def _pairs(axes: Any, left: int, right: int) -> list[tuple[int, int]] | None:
    """Return the contracted axes of arrays of these dimensions, ``None`` if they are no pairs."""
    if isinstance(axes, int):
        axes = range(left - axes, left), range(axes)
    try:
        several = ([axis] if isinstance(axis, int | np.integer) else list(axis) for axis in axes)
        pairs = [(range(left)[i], range(right)[j]) for i, j in zip(*several, strict=True)]
    except (TypeError, ValueError, IndexError):
        return None
    return pairs if all(len({*each}) == len(pairs) for each in zip(*pairs, strict=True)) else None
