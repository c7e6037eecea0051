"""A transform along an axis of which no block holds all: the four-step algorithm.

An axis of ``n = rows columns`` elements is a matrix, written row after row, and its
spectrum is one, written column after column. Between them are two transforms along axes
that are short::

    x[j]     j = columns j1 + j2          k = k1 + rows k2     X[k]

      j2 ->              j2 ->              j2 ->              k2 ->
    +---------+        +--+--+--+         +--+--+--+         +---------+        +--+--+--+
 j1 +---------+ move   |  |  |  |  times  |  |  |  |  move   +---------+  move  |  |  |  |
  | +---------+ -----> |  |  |  | ------> |  |  |  | ------> +---------+ -----> |  |  |  |
  v +---------+  fft   |  |  |  | twiddle |  |  |  |   fft   +---------+        |  |  |  |
                along j1          exp(-2 pi i k1 j2 / n) along j2

The last move makes columns whole, which read one after the other are the spectrum in order.

References
----------
.. [1] D. H. Bailey, "FFTs in external or hierarchical memory", The Journal of
   Supercomputing 4 (1990).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import Array

from dask_dgpu.algorithms.pencil_fft import (
    Chunks,
    PencilPlan,
    Stage,
    Transform,
    even_chunks,
    result_dtype,
)
from dask_dgpu.array.fft.fallback import apply
from dask_dgpu.array.fft.matrix import Matrix, row_cuts
from dask_dgpu.kernels.fft import four_step as kernel

Sizes = tuple[tuple[int, ...], tuple[int, ...]]

SIGN = {"fft": -1, "ifft": 1}
"""Sign of the exponent."""


def four_step(x: Array, transform: Transform, matrix: Matrix, *, parts: int, length: int) -> Array:
    """Transform along a long axis.

    Parameters
    ----------
    x : dask.array.Array
        The input. What is missing to the length of the transform are zeros.
    transform : Transform
        Of kind ``"fft"`` or ``"ifft"``.
    matrix : Matrix
        Of ``transform.n`` elements.
    parts : int
        Number of blocks that the axis should be in, before, between and after.
    length : int
        Elements of the result that are wanted, from the first on.

    Returns
    -------
    dask.array.Array
        Cut along the axis in up to ``parts`` chunks, which differ by one column of the
        matrix at most.
    """
    axis = transform.axis
    y = as_matrix(x, axis, matrix)
    columns = even_chunks(-(-length // matrix.rows), parts)
    y = scrambled(y, transform, matrix, parts=parts, output=((matrix.rows,), columns))
    return as_line(y, axis, length, by_columns=True)


def scrambled(
    x: Array, transform: Transform, matrix: Matrix, *, parts: int, output: Sizes | None = None
) -> Array:
    """Transform a matrix, and leave the spectrum as the matrix that it is.

    Parameters
    ----------
    x : dask.array.Array
        The rows, as :func:`as_matrix` makes them.
    transform : Transform
        Along the axis that became a matrix.
    matrix : Matrix
        How many rows and columns there are.
    parts : int
        Number of blocks.
    output : pair of tuple of int, optional
        Chunks along both axes at the end; what is beyond their ends is left out. By
        default rows are whole.

    Returns
    -------
    dask.array.Array
        The element ``k1 + rows k2`` of the spectrum is in row ``k1`` and column ``k2``.
    """
    first, second = _both(transform, matrix)
    y = _transformed(x, first, cut=second.axis, parts=parts)
    y = _twiddled(y, transform)
    return _transformed(y, second, cut=first.axis, parts=parts, output=output)


def unscrambled(
    x: Array, transform: Transform, matrix: Matrix, *, parts: int, length: int
) -> Array:
    """Transform a spectrum that is scrambled.

    Parameters
    ----------
    x : dask.array.Array
        What :func:`scrambled` makes, or a product of such.
    transform : Transform
        Along the axis that the result has in place of the matrix.
    matrix : Matrix
        How many rows and columns there are.
    parts : int
        Number of blocks.
    length : int
        Elements that are wanted, from the first on.

    Returns
    -------
    dask.array.Array
        In order, cut along the axis.
    """
    first, second = _both(transform, matrix)
    y = _transformed(x, second, cut=first.axis, parts=parts)
    y = _twiddled(y, transform)
    rows = even_chunks(-(-length // matrix.columns), parts)
    output = rows, (matrix.columns,)
    y = _transformed(y, first, cut=second.axis, parts=parts, output=output)
    return as_line(y, transform.axis, length, by_columns=False)


def _both(transform: Transform, matrix: Matrix) -> tuple[Transform, Transform]:
    """Return the transforms along columns and along rows."""
    return (
        replace(transform, n=matrix.rows),
        replace(transform, axis=transform.axis + 1, n=matrix.columns),
    )


def _transformed(
    x: Array, transform: Transform, *, cut: int, parts: int, output: Sizes | None = None
) -> Array:
    """Transform along one axis of a matrix while the other one is cut."""
    chunks = list(x.chunks)
    chunks[transform.axis] = (x.shape[transform.axis],)
    chunks[cut] = even_chunks(x.shape[cut], parts)
    stage = Stage(tuple(chunks), (transform,))
    dtype = x.dtype.name
    end = result_dtype(dtype, (transform,))
    plan = PencilPlan(x.chunks, dtype, (stage,), stage.output_chunks, end)
    y = apply(x, plan, transform.kind)
    if output is None:
        return y
    first = min(transform.axis, cut)
    # not in the plan, which would move what is left out as well
    return moved(y, (*y.chunks[:first], *output, *y.chunks[first + 2 :]))


def moved(x: Array, chunks: Chunks) -> Array:
    """Leave out what is beyond the end of some chunks, and change to these.

    Parameters
    ----------
    x : dask.array.Array
        Any array.
    chunks : tuple of tuple of int
        The new chunks.

    Returns
    -------
    dask.array.Array
        One layer, where blocks must move: its tasks are made where they run.
    """
    y = x[tuple(slice(0, sum(sizes)) for sizes in chunks)]
    plan = PencilPlan(y.chunks, y.dtype.name, (), chunks, y.dtype.name)
    return apply(y, plan, "exchange")


def _twiddled(x: Array, transform: Transform) -> Array:
    axis = transform.axis
    starts = tuple(tuple(accumulate(sizes, initial=0)) for sizes in x.chunks[axis : axis + 2])
    return da.map_blocks(
        _twiddled_block,
        x,
        axis=axis,
        starts=starts,
        n=transform.n,
        sign=SIGN[transform.kind],
        dtype=x.dtype,
        meta=x._meta,
    )


def _twiddled_block(
    block: Any,
    axis: int,
    starts: tuple[tuple[int, ...], tuple[int, ...]],
    n: int,
    sign: int,
    block_id: tuple[int, ...],
) -> Any:
    rows, columns = starts
    start = rows[block_id[axis]], columns[block_id[axis + 1]]
    return kernel.twiddled(block, axis, start, n, sign)


def as_matrix(x: Array, axis: int, matrix: Matrix) -> Array:
    """Write an axis as rows, as many as its elements fill, without what is beyond the last.

    Cuts move to the nearest row, so blocks change by less than a row at each end.
    """
    length, width = min(matrix.n, x.shape[axis]), matrix.columns
    sizes = row_cuts(x.chunks[axis], length, width)
    x = moved(x, (*x.chunks[:axis], sizes, *x.chunks[axis + 1 :]))
    rows = tuple(-(-size // width) for size in sizes)
    return da.map_blocks(
        kernel.matrix_of,
        x,
        axis=axis,
        width=width,
        new_axis=axis + 1,
        chunks=(*x.chunks[:axis], rows, (width,), *x.chunks[axis + 1 :]),
        dtype=x.dtype,
        meta=meta_like(x, x.ndim + 1, x.dtype),
    )


def as_line(x: Array, axis: int, length: int, *, by_columns: bool) -> Array:
    """Read a matrix, whole along its rows or its columns, one after the other."""
    whole, cut = (axis, axis + 1) if by_columns else (axis + 1, axis)
    sizes = tuple(size * x.shape[whole] for size in x.chunks[cut])
    index = tuple(range(x.ndim))
    # not map_blocks, which would copy a block to concatenate it with nothing
    y: Array = da.blockwise(
        _line_of_one,
        tuple(each for each in index if each != whole),
        x,
        index,
        axis=axis,
        by_columns=by_columns,
        adjust_chunks={cut: sizes},
        dtype=x.dtype,
        meta=meta_like(x, x.ndim - 1, x.dtype),
    )
    return y[(slice(None),) * axis + (slice(0, length),)]


def _line_of_one(blocks: list[Any], axis: int, by_columns: bool) -> Any:
    (block,) = blocks
    return kernel.line_of(block, axis, by_columns=by_columns)


def meta_like(x: Array, ndim: int, dtype: Any) -> Any:
    """Return an empty array of the type of the blocks."""
    return np.empty_like(x._meta, shape=(0,) * ndim, dtype=dtype)
