"""Transforms along an axis that is too long for a block, by transforms of shorter ones.

The four-step algorithm needs a length without large prime factors. Bluestein's algorithm ([1]_)
does any other length. With ``j k = (j^2 + k^2 - (k - j)^2) / 2`` and the chirp
``w[m] = exp(-pi i m^2 / n)`` a transform is a convolution between two products::

    X[k] = w[k] sum_j  x[j] w[j]  conj(w)[k - j]

The convolution is cyclic, of a length of at least ``2 n - 1`` with small prime factors: a
four-step transform of each factor, a product, and one transform back. A product needs no
ordered spectra, so they stay scrambled, which saves two moves.

References
----------
.. [1] L. I. Bluestein, "A linear filtering approach to the computation of discrete Fourier
   transform", IEEE Transactions on Audio and Electroacoustics 18 (1970).
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import accumulate
from typing import Any

import dask.array as da
import numpy as np
import scipy.fft
from dask.array.core import Array
from dask.utils import typename

from dask_dgpu.array.fft.fallback import map_with_start
from dask_dgpu.array.fft.four_step import (
    SIGN,
    Matrix,
    as_line,
    as_matrix,
    four_step,
    matrix_for,
    transformed,
)
from dask_dgpu.kernels.fft import TO_REAL, Transform
from dask_dgpu.kernels.fft import factors as kernel

SMALL = 16 * 2**20
"""Blocks of at most these bytes are never too large."""


def along_long_axis(x: Array, transform: Transform) -> Array:
    """Transform along one axis without whole blocks, to NumPy's dtype.

    A transform from real numbers is one half of the complex one, a transform to real numbers the
    real part of the transform of a one-sided spectrum.
    """
    axis, n, length = transform.axis, transform.n, transform.output_length
    parts = len(x.chunks[axis])
    kind = "fft" if transform.kind in ("fft", "rfft", "hfft") else "ifft"
    to_complex = replace(transform, kind=kind)
    dtype = to_complex.output_dtype(x.dtype.name)
    cuts = tuple(accumulate(x.chunks[axis][:-1]))
    line = math.prod(max(sizes) for k, sizes in enumerate(x.chunks) if k != axis)
    matrix = matrix_for(n, parts, cuts, enough=SMALL // (line * np.dtype(dtype).itemsize))
    y = x
    if transform.kind in TO_REAL:
        y = x[(slice(None),) * axis + (slice(0, n // 2 + 1),)]
        y = map_with_start(kernel.one_sided, y, axis, n, dtype, dtype=dtype)
    if matrix is None:
        y = bluestein(y, to_complex, parts=parts, length=length)
    else:
        y = four_step(y, to_complex, matrix, parts=parts, length=length)
    if transform.kind in TO_REAL:
        dtype = transform.output_dtype(x.dtype.name)
        meta = np.empty_like(y._meta, dtype=dtype)
        y = da.map_blocks(kernel.real_part, y, out=dtype, dtype=dtype, meta=meta)
    return y


def bluestein(x: Array, transform: Transform, *, parts: int, length: int) -> Array:
    """Transform along a long axis, of any length.

    ``transform`` is of kind ``"fft"`` or ``"ifft"``; the input is padded with zeros. The axis
    has at most ``parts`` blocks at every step; their sizes differ by at most one row of
    :func:`convolution_matrix`. Intermediate arrays are at least twice as long as the input.
    Only the first ``length`` elements are computed.
    """
    axis, n = transform.axis, transform.n
    dtype = transform.output_dtype(x.dtype.name)
    matrix = convolution_matrix(n)
    forth, back = Transform("fft", axis, matrix.n), Transform("ifft", axis, matrix.n)
    kept = (slice(None),) * axis + (slice(0, n),)
    y = as_matrix(_chirped(x[kept], transform, dtype), axis, matrix)
    y = transformed(y, forth, matrix, parts=parts)
    response = _filter(y, transform, matrix, dtype)
    response = transformed(response, replace(forth, axis=0), matrix, parts=parts)
    y = transformed(y * response, back, matrix, parts=parts, back=True)
    y = as_line(y, axis, length, parts=parts, by_columns=False)
    return _chirped(y, transform, dtype, scale=transform.factor)


def _chirped(x: Array, transform: Transform, dtype: str, scale: float = 1.0) -> Array:
    axis, n, sign = transform.axis, transform.n, SIGN[transform.kind]
    return map_with_start(kernel.chirped, x, axis, n, sign, dtype, scale, dtype=dtype)


def _filter(x: Array, transform: Transform, matrix: Matrix, dtype: str) -> Array:
    """Return the filter of the convolution as a matrix, with the row chunks of ``x``.

    It has the axes of ``x`` from the rows on.
    """
    rows = x.chunks[transform.axis]
    row = matrix.columns, *(1,) * (x.ndim - transform.axis - 2)
    # the type by name: the scheduler may be unable to unpickle a CuPy array
    module = typename(type(x._meta)).partition(".")[0]
    return da.map_blocks(
        _filter_block,
        starts=tuple(accumulate(rows, initial=0)),
        row=row,
        arguments=(matrix.n, transform.n, SIGN[transform.kind], dtype, module),
        chunks=(rows, *((length,) for length in row)),
        dtype=dtype,
        meta=np.empty_like(x._meta, shape=(0,) * (1 + len(row)), dtype=dtype),
    )


def _filter_block(
    starts: tuple[int, ...],
    row: tuple[int, ...],
    arguments: tuple[Any, ...],
    block_id: tuple[int, ...],
) -> Any:
    start, stop = starts[block_id[0] : block_id[0] + 2]
    return kernel.chirp_filter(start, (stop - start, *row), *arguments)


def convolution_matrix(n: int) -> Matrix:
    """Return a nearly square matrix of at least ``2 n - 1`` elements.

    Its sides have no large prime factors.
    """
    least = 2 * n - 1
    rows = scipy.fft.next_fast_len(math.isqrt(least - 1) + 1)
    return Matrix(rows, scipy.fft.next_fast_len(-(-least // rows)))
