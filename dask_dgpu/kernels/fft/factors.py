"""Products with factors that depend on the position of each element, for NumPy and CuPy alike.

They are the local steps of transforms along a long axis, where no block has the whole axis, and of
the solution of Poisson's equation. ``start`` is the position of a block's first element along each
axis of the array.

Along one axis the discrete Laplacian has three points: ``(u[j-1] - 2 u[j] + u[j+1]) / dx^2``. Its
eigenvectors are waves, sines or cosines, by the boundary, and its eigenvalues
``-(2 sin(t) / dx)^2`` ([1]_). Those of several axes add up.

References
----------
.. [1] G. Strang, "The discrete cosine transform", SIAM Review 41 (1999).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from graph_opt.model.layout import real_of

Array = Any
Start = tuple[int, ...]

GROUP = 1 << 20
"""Factors to compute at a time."""


def spans(length: int, step: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of up to ``step`` that cover ``length``."""
    for low in range(0, length, step):
        yield low, min(low + step, length)


def aligned(factors: Array, axis: int, ndim: int) -> Array:
    """Return factors along some axes, from ``axis`` on, as an array of ``ndim`` axes."""
    return factors.reshape((*factors.shape, *(1,) * (ndim - axis - factors.ndim)))


def roots_of_unity(powers: Array, n: int, sign: int, dtype: Any) -> Array:
    """Return ``exp(sign 2 pi i powers / n)`` for int64 powers from 0 to ``n``.

    The result has at least double precision, or that of the complex ``dtype`` if it is longer.
    """
    real = np.result_type(real_of(dtype), np.float64)
    turn = 2 * np.arccos(real.type(-1))
    nearest = np.where(2 * powers > n, powers - n, powers).astype(real)
    return np.exp(1j * (nearest / n * (sign * turn)))


def _multiplied(
    block: Array, axis: int, step: int, factors: Callable[[int, int], Array], dtype: Any = None
) -> Array:
    """Return a block times ``factors(low, high)`` of spans of up to ``step`` along an axis."""
    result = np.empty_like(block, dtype=dtype)
    for low, high in spans(block.shape[axis], step):
        part = (slice(None),) * axis + (slice(low, high),)
        np.multiply(block[part], factors(low, high), out=result[part])
    return result


def matrix_of(block: Array, axis: int, width: int) -> Array:
    """Split an axis of length n into two: ``ceil(n / width)`` rows of a width.

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


def twiddled(block: Array, start: Start, axis: int, n: int, sign: int) -> Array:
    """Multiply the element in row ``j`` and column ``k`` by ``exp(sign 2 pi i j k / n)``.

    ``axis`` is the axis of the rows, the next one that of the columns, and ``n`` exceeds every
    ``j k``. ``sign`` is -1 for a forward transform.

    Factors have at least double precision. Those of a row are the products of two short tables:
    ``exp(j (a + b)) = exp(j a) exp(j b)``.
    """
    if not isinstance(block, np.ndarray):
        from dask_dgpu.kernels.fft.factors_cuda import twiddled_cuda

        return twiddled_cuda(block, start, axis, n, sign)
    first, columns = start[axis], block.shape[axis + 1]
    side = math.isqrt(max(1, columns) - 1) + 1
    fine = np.arange(side, dtype=np.int64, like=block)
    coarse = start[axis + 1] + side * np.arange(-(-columns // side), dtype=np.int64, like=block)

    def factors(low: int, high: int) -> Array:
        j = np.arange(first + low, first + high, dtype=np.int64, like=block)[:, None]
        far = roots_of_unity(j * coarse, n, sign, block.dtype)
        near = roots_of_unity(j * fine, n, sign, block.dtype)
        products = (far[:, :, None] * near[:, None, :]).reshape((high - low, -1))
        return aligned(products[:, :columns].astype(block.dtype, copy=False), axis, block.ndim)

    return _multiplied(block, axis, max(1, GROUP // max(1, columns)), factors)


def chirped(
    block: Array, start: Start, axis: int, n: int, sign: int, dtype: str, scale: float = 1.0
) -> Array:
    """Multiply the element at ``m`` along an axis by ``scale exp(sign pi i m m / n)``.

    ``n`` exceeds every ``m``. The result has the complex ``dtype``.
    """
    if not isinstance(block, np.ndarray):
        from dask_dgpu.kernels.fft.factors_cuda import chirped_cuda

        return chirped_cuda(block, start, axis, n, sign, dtype, scale)
    first = start[axis]

    def factors(low: int, high: int) -> Array:
        m = np.arange(first + low, first + high, dtype=np.int64, like=block)
        return aligned(
            (scale * _chirp(m, n, sign, dtype)).astype(dtype, copy=False), axis, block.ndim
        )

    return _multiplied(block, axis, GROUP, factors, dtype)


def chirp_filter(
    row: int, shape: tuple[int, ...], length: int, n: int, sign: int, dtype: str, module: str
) -> Array:
    """Return some rows of the sequence to convolve with a chirped signal of length ``n``.

    Element ``m`` of the cyclic sequence is ``exp(-sign pi i d d / n)``, where ``d`` is the distance
    of ``m`` to 0, and 0 if ``d`` is ``n`` or more. ``length`` is its period, at least ``2 n - 1``.
    The rows from ``row`` on have the shape (rows, length of a row, 1, ...) and a complex dtype;
    ``module`` is ``"numpy"`` or ``"cupy"``.
    """
    size, first = shape[0] * shape[1], row * shape[1]
    result = import_module(module).zeros(size, dtype)
    if not isinstance(result, np.ndarray):
        from dask_dgpu.kernels.fft.factors_cuda import chirp_filter_cuda

        return chirp_filter_cuda(first, result, length, n, sign).reshape(shape)
    for low, high in spans(size, GROUP):
        m = np.arange(first + low, first + high, dtype=np.int64, like=result)
        distance = np.minimum(m, length - m)
        values = _chirp(np.minimum(distance, n - 1), n, -sign, dtype)
        result[low:high] = np.where(distance < n, values, 0)
    return result.reshape(shape)


def _chirp(m: Array, n: int, sign: int, dtype: str) -> Array:
    return roots_of_unity(squares(m, 2 * n), 2 * n, sign, dtype)


def squares(m: Array, modulus: int) -> Array:
    """Return ``m * m`` modulo a number below 2**61, exactly; ``m`` is int64, from 0 to the modulus.

    One factor is split into digits, from the highest on. A digit has as many bits as
    an int64 has besides the modulus.
    """
    bits = modulus.bit_length()
    digit = 62 - bits
    result = np.zeros_like(m)
    for shift in reversed(range(0, bits, digit)):
        factor = (m >> shift) & (2**digit - 1)
        result = ((result << digit) + m * factor) % modulus
    return result


def one_sided(block: Array, start: Start, axis: int, n: int, dtype: str) -> Array:
    """Return a spectrum whose transform has the real part of the stored half's.

    A spectrum with Hermitian symmetry is the mean of such a one-sided spectrum and its reflection.
    So elements are doubled, except for those that are their own reflection: these become real.

    ``n`` is the length of the transform, ``dtype`` the complex dtype of the result. Elements
    beyond ``n // 2`` count as zeros.
    """
    result = np.multiply(block, 2, dtype=dtype)
    for own in {0, n // 2} if n % 2 == 0 else {0}:
        if start[axis] <= own < start[axis] + block.shape[axis]:
            at = (slice(None),) * axis + (own - start[axis],)
            result[at] = block[at].real
    return result


def real_part(block: Array, out: str) -> Array:
    """Return a copy of the real part in the real dtype ``out``."""
    return block.real.astype(out)


@dataclass(frozen=True)
class Axis:
    """The discrete Laplacian along one axis of ``n`` points, with spacing ``dx``.

    Beyond the ends are the other end (``"periodic"``), zeros (``"zero"``), or the values at the
    ends again (``"reflect"``).
    """

    n: int
    dx: float
    boundary: str

    def eigenvalues(self, start: int, stop: int, dtype: Any, like: Array) -> Array:
        """Return the eigenvalues from ``start`` to ``stop``, none of them positive.

        They are in the order of the transform: FFT, type-I sines, type-II cosines. The eigenvalue
        of a constant is exactly 0.
        """
        zero = self.boundary == "zero"
        turn = 2 * (self.n + 1) if zero else self.n if self.boundary == "periodic" else 2 * self.n
        k = np.arange(start + zero, stop + zero, like=like).astype(dtype)
        pi = np.arccos(k.dtype.type(-1))
        return -((2 * np.sin(k / turn * pi) / self.dx) ** 2)


def divide(block: Array, start: Start, axes: tuple[Axis, ...]) -> Array:
    """Divide a part of a spectrum by the eigenvalues of the Laplacian; a constant becomes 0.

    The result is a new array of the same dtype; factors have at least double precision.
    """
    if block.size == 0:  # perhaps without the element of a constant
        return np.empty_like(block)
    dtype = np.result_type(block.real.dtype, np.float64)
    if not isinstance(block, np.ndarray):
        from dask_dgpu.kernels.fft.factors_cuda import quotient

        values = [
            aligned(axis.eigenvalues(first, first + length, dtype, block), k, block.ndim)
            for k, (axis, first, length) in enumerate(zip(axes, start, block.shape, strict=True))
        ]
        return quotient(block.ndim, block.dtype.kind == "c")(block, *values)
    longest = max(range(block.ndim), key=lambda axis: block.shape[axis])
    has_constant = not any(start) and all(axis.boundary != "zero" for axis in axes)

    def factors(low: int, high: int) -> Array:
        total: Array = np.zeros_like(block, shape=(1,) * block.ndim, dtype=dtype)
        for k, axis in enumerate(axes):
            span = (low, high) if k == longest else (0, block.shape[k])
            values = axis.eigenvalues(start[k] + span[0], start[k] + span[1], dtype, block)
            total = total + aligned(values, k, block.ndim)
        if low == 0 and has_constant:
            total[(0,) * block.ndim] = -np.inf
        return 1 / total

    rows = max(1, GROUP * block.shape[longest] // block.size)
    return _multiplied(block, longest, rows, factors)
