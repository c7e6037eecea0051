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

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import Array

from dask_dgpu.algorithms.pencil_fft.plan import PencilPlan, Stage, even_chunks
from dask_dgpu.array.fft.fallback import apply, map_with_start, moved
from dask_dgpu.kernels.fft import Transform
from dask_dgpu.kernels.fft import factors as kernel

EVEN = 1.1
"""A largest block of at most this multiple of the average counts as even."""
UNEVEN = 2.0
"""A largest block of this multiple of the average is too large."""
SIGN = {"fft": -1, "ifft": 1}
"""Sign of the exponent."""


@dataclass(frozen=True)
class Matrix:
    """The shape of a long axis as a row-major matrix."""

    rows: int
    columns: int

    @property
    def n(self) -> int:
        """Length of the axis."""
        return self.rows * self.columns


def matrix_for(n: int, parts: int, cuts: Sequence[int] = (), *, enough: int = 1) -> Matrix | None:
    """Choose the matrix for a transform of length ``n`` with a number of blocks at every step.

    Among matrices with even blocks, those with rows that begin where chunks begin, at ``cuts``,
    are preferred, since their first step moves nothing; then the most square one. Blocks of at
    most ``enough`` elements are never too large. Return ``None`` if every matrix has a block that
    is too large.
    """
    small = np.arange(1, math.isqrt(n) + 1, dtype=np.int64)
    divisors = small[n % small == 0].tolist()
    best: tuple[tuple[float, bool, int], Matrix] | None = None
    for columns in sorted({*divisors, *(n // divisor for divisor in divisors)}):
        matrix = Matrix(n // columns, columns)
        sides = matrix.rows, matrix.columns
        largest = max(-(-side // min(parts, side)) * (n // side) for side in sides)
        unevenness = largest * parts / n
        if unevenness >= UNEVEN and largest > enough:
            continue
        misses = any(cut % columns for cut in cuts)
        key = (max(EVEN, unevenness), misses, max(sides))
        if best is None or key < best[0]:
            best = key, matrix
    return None if best is None else best[1]


def four_step(x: Array, transform: Transform, matrix: Matrix, *, parts: int, length: int) -> Array:
    """Transform along a long axis of ``transform.n`` elements; the input is padded with zeros.

    ``transform`` is of kind ``"fft"`` or ``"ifft"``. Only the first ``length`` elements are
    computed. The axis has at most ``parts`` blocks at every step; in the result they differ by at
    most one column.
    """
    y = transformed(as_matrix(x, transform.axis, matrix), transform, matrix, parts=parts)
    return as_line(y, transform.axis, length, parts=parts, by_columns=True)


def transformed(
    x: Array, transform: Transform, matrix: Matrix, *, parts: int, back: bool = False
) -> Array:
    """Transform along the columns of a matrix, multiply by twiddle factors, transform along rows.

    The element ``k1 + rows k2`` of the spectrum of :func:`as_matrix` is in row ``k1`` and column
    ``k2``. From such a spectrum ``back`` leads to a matrix in row-major order: along rows first.
    """
    axis = transform.axis
    columns = replace(transform, n=matrix.rows)
    rows = replace(transform, axis=axis + 1, n=matrix.columns)
    first, second = (rows, columns) if back else (columns, rows)
    y = _along(x, first, second.axis, parts)
    y = map_with_start(kernel.twiddled, y, axis, transform.n, SIGN[transform.kind])
    return _along(y, second, first.axis, parts)


def _along(x: Array, transform: Transform, cut: int, parts: int) -> Array:
    """Transform along one axis of a matrix; ``cut`` is the other axis, in chunks."""
    chunks = list(x.chunks)
    chunks[transform.axis] = (x.shape[transform.axis],)
    chunks[cut] = even_chunks(x.shape[cut], parts)
    stage = Stage(tuple(chunks), (transform,))
    dtype = x.dtype.name
    end = transform.output_dtype(dtype)
    return apply(x, PencilPlan(x.chunks, dtype, (stage,), stage.output_chunks, end), transform.kind)


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
        meta=np.empty_like(x._meta, shape=(0,) * (x.ndim + 1)),
    )


def row_cuts(sizes: Sequence[int], length: int, width: int) -> tuple[int, ...]:
    """Return the chunks of an axis, each moved to begin at the nearest row.

    ``length`` is the new end of the axis, ``width`` the length of a row.
    """
    moved = {(cut + width // 2) // width * width for cut in accumulate(sizes)}
    inner = sorted(cut for cut in moved if 0 < cut < length)
    return tuple(high - low for low, high in pairwise([0, *inner, length]))


def as_line(x: Array, axis: int, length: int, *, parts: int, by_columns: bool) -> Array:
    """Reshape a matrix to one axis of this length, by whole rows or by whole columns."""
    whole, cut = (axis, axis + 1) if by_columns else (axis + 1, axis)
    width = x.shape[whole]
    chunks = list(x.chunks)
    chunks[whole], chunks[cut] = (width,), even_chunks(-(-length // width), parts)
    # not in the plan of the transform, which would move the dropped elements too
    x = moved(x, tuple(chunks))
    index = tuple(range(x.ndim))
    # map_blocks would copy each block to concatenate it with nothing
    y: Array = da.blockwise(
        _line_of_one,
        tuple(each for each in index if each != whole),
        x,
        index,
        axis=axis,
        by_columns=by_columns,
        adjust_chunks={cut: tuple(size * width for size in x.chunks[cut])},
        dtype=x.dtype,
        meta=np.empty_like(x._meta, shape=(0,) * (x.ndim - 1)),
    )
    return y[(slice(None),) * axis + (slice(0, length),)]


def _line_of_one(blocks: list[Any], axis: int, by_columns: bool) -> Any:
    (block,) = blocks
    return kernel.line_of(block, axis, by_columns=by_columns)
