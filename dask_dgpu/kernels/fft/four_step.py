"""The local steps of the four-step transform, for NumPy and CuPy alike.

A long axis becomes two, ``axis`` and ``axis + 1``: the rows and the columns of a matrix.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from graph_opt.model.layout import real_of

Array = Any

GROUP = 1 << 20
"""Factors to compute at a time."""


def matrix_of(block: Array, axis: int, width: int) -> Array:
    """Split an axis of length n into ``ceil(n / width)`` rows of a width.

    Zeros fill the last row; otherwise the result is a view.
    """
    before, length, after = block.shape[:axis], block.shape[axis], block.shape[axis + 1 :]
    rows = -(-length // width)
    if rows * width != length:
        padded = np.zeros_like(block, shape=(*before, rows * width, *after))
        padded[(slice(None),) * axis + (slice(0, length),)] = block
        block = padded
    return block.reshape((*before, rows, width, *after))


def line_of(block: Array, axis: int, *, by_columns: bool) -> Array:
    """Undo :func:`matrix_of`, or read the matrix by columns."""
    if by_columns:
        block = block.swapaxes(axis, axis + 1)
    rows, columns = block.shape[axis : axis + 2]
    return block.reshape((*block.shape[:axis], rows * columns, *block.shape[axis + 2 :]))


def twiddled(block: Array, axis: int, start: tuple[int, int], n: int, sign: int) -> Array:
    """Multiply the element in row ``j`` and column ``k`` by ``exp(sign 2 pi i j k / n)``.

    ``axis`` is the axis of the rows, ``start`` the row and column of the block's first element, and
    ``n`` exceeds every ``j k``. ``sign`` is -1 for a forward transform.

    Factors have at least double precision. Those of a row are the products of two short tables:
    ``exp(j (a + b)) = exp(j a) exp(j b)``.
    """
    rows, columns = block.shape[axis : axis + 2]
    result = np.empty_like(block)
    trailing = (1,) * (block.ndim - axis - 2)
    for low, high in spans(rows, max(1, GROUP // max(1, columns))):
        part = (slice(None),) * axis + (slice(low, high),)
        j = np.arange(start[0] + low, start[0] + high, dtype=np.int64, like=block)
        factors = _twiddles(j, start[1], columns, n, sign, block.dtype)
        factors = factors.reshape((high - low, columns, *trailing))
        np.multiply(block[part], factors, out=result[part])
    return result


def _twiddles(j: Array, first: int, columns: int, n: int, sign: int, dtype: Any) -> Array:
    """Return the factors of rows ``j`` and of a number of columns from the first."""
    side = math.isqrt(max(1, columns) - 1) + 1
    fine = np.arange(side, dtype=np.int64, like=j)
    coarse = first + side * np.arange(-(-columns // side), dtype=np.int64, like=j)
    far = roots_of_unity(j[:, None] * coarse, n, sign, dtype)
    near = roots_of_unity(j[:, None] * fine, n, sign, dtype)
    products = (far[:, :, None] * near[:, None, :]).reshape((len(j), -1))
    return products[:, :columns].astype(dtype, copy=False)


def roots_of_unity(powers: Array, n: int, sign: int, dtype: Any) -> Array:
    """Return ``exp(sign 2 pi i powers / n)`` for int64 powers from 0 to ``n``.

    The result has at least double precision, or that of the complex ``dtype`` if it is longer.
    """
    real = np.result_type(real_of(dtype), np.float64)
    turn = 2 * np.arccos(real.type(-1))
    nearest = np.where(2 * powers > n, powers - n, powers).astype(real)
    return np.exp(1j * (nearest / n * (sign * turn)))


def spans(length: int, step: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of up to ``step`` that cover ``length``."""
    for low in range(0, length, step):
        yield low, min(low + step, length)
