"""The local steps of Bluestein's algorithm, for NumPy and CuPy alike."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from dask_dgpu.kernels.fft.four_step import GROUP, roots_of_unity, spans

Array = Any


def chirped(
    block: Array, axis: int, start: int, n: int, sign: int, dtype: str, scale: float = 1.0
) -> Array:
    """Multiply the element at ``m`` along an axis by ``scale exp(sign pi i m m / n)``.

    The block starts at ``start`` along the axis, and ``n`` exceeds every ``m``. ``sign`` is -1 for
    a forward transform. The result is a new array of the complex ``dtype``.
    """
    result = np.empty_like(block, dtype=dtype)
    trailing = (1,) * (block.ndim - axis - 1)
    for low, high in spans(block.shape[axis], GROUP):
        part = (slice(None),) * axis + (slice(low, high),)
        m = np.arange(start + low, start + high, dtype=np.int64, like=block)
        factors = (scale * _chirp(m, n, sign, dtype)).astype(dtype, copy=False)
        np.multiply(block[part], factors.reshape((-1, *trailing)), out=result[part])
    return result


def chirp_filter(
    start: int, shape: tuple[int, int], length: int, n: int, sign: int, dtype: str, module: str
) -> Array:
    """Return some rows of the sequence to convolve with a chirped signal of length ``n``.

    Element ``m`` of the cyclic sequence is ``exp(-sign pi i d d / n)``, where ``d`` is the distance
    of ``m`` to 0, and 0 if ``d`` is ``n`` or more. ``length`` is its period, at least ``2 n - 1``.
    The rows from ``start`` on have the shape (rows, length of a row) and a complex dtype;
    ``module`` is ``"numpy"`` or ``"cupy"``.
    """
    size = shape[0] * shape[1]
    result = import_module(module).zeros(size, dtype)
    for low, high in spans(size, GROUP):
        first = start * shape[1]
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
