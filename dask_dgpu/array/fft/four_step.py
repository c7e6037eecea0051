"""The four-step algorithm: a transform along a long axis that stays in chunks.

An axis of ``n = rows columns`` elements is a matrix in row-major order. Its spectrum is a
matrix in column-major order. Two transforms along short axes lead from one to the other::

    x[j]     j = columns j1 + j2          k = k1 + rows k2     X[k]

      j2 ->              j2 ->              j2 ->              k2 ->
    +---------+        +--+--+--+         +--+--+--+         +---------+        +--+--+--+
 j1 +---------+ move   |  |  |  |  times  |  |  |  |  move   +---------+  move  |  |  |  |
  | +---------+ -----> |  |  |  | ------> |  |  |  | ------> +---------+ -----> |  |  |  |
  v +---------+  fft   |  |  |  | twiddle |  |  |  |   fft   +---------+        |  |  |  |
                along j1          exp(-2 pi i k1 j2 / n) along j2

The last move makes columns whole; in sequence they are the ordered spectrum.

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
from dask.array.core import Array

from dask_dgpu.algorithms.pencil_fft import (
    Chunks,
    PencilPlan,
    Stage,
    Transform,
    even_chunks,
    result_dtype,
)
from dask_dgpu.array.fft.blocks import meta_like
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
        The input, padded with zeros to the length of the transform.
    transform : Transform
        Of kind ``"fft"`` or ``"ifft"``.
    matrix : Matrix
        Of ``transform.n`` elements.
    parts : int
        Number of blocks along the axis, at every step.
    length : int
        Number of elements to compute, from the first one.

    Returns
    -------
    dask.array.Array
        At most ``parts`` chunks along the axis; they differ by at most one column.
    """
    axis = transform.axis
    y = as_matrix(x, axis, matrix)
    columns = even_chunks(-(-length // matrix.rows), parts)
    y = scrambled(y, transform, matrix, parts=parts, output=((matrix.rows,), columns))
    return as_line(y, axis, length, by_columns=True)


def scrambled(
    x: Array, transform: Transform, matrix: Matrix, *, parts: int, output: Sizes | None = None
) -> Array:
    """Transform the rows from :func:`as_matrix`, and return the spectrum as a matrix.

    The element ``k1 + rows k2`` of the spectrum is in row ``k1`` and column ``k2``.
    ``output`` are the chunks of both axes, and elements beyond their ends are dropped; by
    default rows are whole.
    """
    first, second = _both(transform, matrix)
    y = _transformed(x, first, cut=second.axis, parts=parts)
    y = _twiddled(y, transform)
    return _transformed(y, second, cut=first.axis, parts=parts, output=output)


def unscrambled(
    x: Array, transform: Transform, matrix: Matrix, *, parts: int, length: int
) -> Array:
    """Transform a spectrum from :func:`scrambled`, or a product of such.

    The result has one axis in place of the matrix, in order, with ``length`` elements.
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
    """Transform along one axis of a matrix; ``cut`` is the other axis, in chunks."""
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
    # not in the plan, which would move the dropped elements too
    return moved(y, (*y.chunks[:first], *output, *y.chunks[first + 2 :]))


def moved(x: Array, chunks: Chunks) -> Array:
    """Drop elements beyond the ends of some chunks, and rechunk to these.

    This is at most one layer in the graph; the scheduler creates its tasks.
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
    """Reshape an axis to rows; the last row may be partly filled.

    Chunks begin at the nearest row, so blocks change by less than a row at each end.
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
    """Reshape a matrix to one axis, by whole rows or by whole columns."""
    whole, cut = (axis, axis + 1) if by_columns else (axis + 1, axis)
    sizes = tuple(size * x.shape[whole] for size in x.chunks[cut])
    index = tuple(range(x.ndim))
    # map_blocks would copy each block to concatenate it with nothing
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
