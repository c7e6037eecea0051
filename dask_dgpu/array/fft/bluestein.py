"""Bluestein's algorithm: a transform along a long axis of any length.

With ``j k = (j^2 + k^2 - (k - j)^2) / 2`` and the chirp ``w[m] = exp(-pi i m^2 / n)`` a
transform of any length is a convolution between two products::

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
from itertools import accumulate
from typing import Any

import dask.array as da
from dask.array.core import Array
from dask.utils import typename

from dask_dgpu.algorithms.pencil_fft import Transform
from dask_dgpu.array.fft.blocks import map_with_start, meta_like
from dask_dgpu.array.fft.four_step import SIGN, as_matrix, scrambled, unscrambled
from dask_dgpu.array.fft.matrix import Matrix, convolution_matrix
from dask_dgpu.kernels.fft import bluestein as kernel


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
    y = scrambled(y, forth, matrix, parts=parts)
    response = scrambled(_filter(y, transform, matrix, dtype), forth, matrix, parts=parts)
    y = unscrambled(y * response, back, matrix, parts=parts, length=length)
    return _chirped(y, transform, dtype, scale=_scale(transform))


def _scale(transform: Transform) -> float:
    """Return the factor of NumPy's ``norm``."""
    scaled = {"forward": "fft", "backward": "ifft"}
    if transform.norm == "ortho":
        return 1 / math.sqrt(transform.n)
    return 1 / transform.n if scaled[transform.norm] == transform.kind else 1.0


def _chirped(x: Array, transform: Transform, dtype: str, scale: float = 1.0) -> Array:
    n, sign = transform.n, SIGN[transform.kind]
    return map_with_start(kernel.chirped, x, transform.axis, n, sign, dtype, scale, dtype=dtype)


def _filter(x: Array, transform: Transform, matrix: Matrix, dtype: str) -> Array:
    """Return the filter of the convolution as a matrix, with the row chunks of ``x``."""
    axis = transform.axis
    rows = x.chunks[axis]
    ones = ((1,),)
    # the type by name: the scheduler may be unable to unpickle a CuPy array
    return da.map_blocks(
        _filter_block,
        axis=axis,
        ndim=x.ndim,
        starts=tuple(accumulate(rows, initial=0)),
        matrix=matrix,
        n=transform.n,
        sign=SIGN[transform.kind],
        out=dtype,
        module=typename(type(x._meta)).partition(".")[0],
        chunks=(*ones * axis, rows, (matrix.columns,), *ones * (x.ndim - axis - 2)),
        dtype=dtype,
        meta=meta_like(x, x.ndim, dtype),
    )


def _filter_block(
    axis: int,
    ndim: int,
    starts: tuple[int, ...],
    matrix: Matrix,
    n: int,
    sign: int,
    out: str,
    module: str,
    block_id: tuple[int, ...],
) -> Any:
    start, stop = starts[block_id[axis] : block_id[axis] + 2]
    shape = stop - start, matrix.columns
    block = kernel.chirp_filter(start, shape, matrix.n, n, sign, out, module)
    return block.reshape((*(1,) * axis, *shape, *(1,) * (ndim - axis - 2)))
