"""Exact products of numbers as terms that add up to them, for NumPy and CuPy alike.

A product of two single-precision numbers is exact in double precision. A product of two
double-precision numbers is the sum of two terms, found by splitting the factors in halves ([1]_).

References
----------
.. [1] T. J. Dekker, "A floating-point technique for extending the available precision",
   Numerische Mathematik 18 (1971).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_dgpu.kernels.fused import called
from dask_dgpu.kernels.sums.conversion import widened
from graph_opt.model.layout import is_bfloat16, real_of

Array = Any

SPLIT = 2.0**27 + 1
LARGE = np.float64(2.0**970)
"""Larger factors are scaled down before the split, which would overflow."""


def terms(x: Array, y: Array) -> Array:
    """Return numbers whose sum is the sum of the products of two arrays of real or complex numbers.

    They are float64 or complex128, with another axis at the end for the :func:`count` terms of each
    product. Terms below the smallest normal number may be lost. If a product is not finite, it is
    the first term.

    Raises
    ------
    ValueError
        If the shapes differ, as is possible for unknown chunk sizes.
    """
    if x.shape != y.shape:
        raise ValueError(f"expected blocks of equal shape, got {x.shape} for x and {y.shape} for y")
    real, imaginary = _product(x.real, y.real), []
    if y.dtype.kind == "c":
        imaginary += _product(x.real, y.imag)
    if x.dtype.kind == "c":
        imaginary += _product(x.imag, y.real)
    if not imaginary:
        return np.stack(real, axis=-1) if len(real) > 1 else real[0][..., None]
    if x.dtype.kind == y.dtype.kind:
        real += [-term for term in _product(x.imag, y.imag)]
    result = np.empty((*x.shape, len(real)), np.complex128, like=x)
    result.real, result.imag = np.stack(real, axis=-1), np.stack(imaginary, axis=-1)
    return result


def count(x: np.dtype[Any], y: np.dtype[Any]) -> int:
    """Return the number of terms of a product of two dtypes."""
    both = 2 if x.kind == "c" and y.kind == "c" else 1
    return both * (1 if _exact(x) and _exact(y) else 2)


def _exact(dtype: np.dtype[Any]) -> bool:
    """Whether the parts of its numbers have at most half the digits of a double."""
    return bool(np.can_cast(real_of(dtype), np.float32, "safe"))


def _product(a: Array, b: Array) -> list[Array]:
    function = _whole if _exact(a.dtype) and _exact(b.dtype) else _whole_and_rest
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        return [*called(function, *(widened(x) if is_bfloat16(x.dtype) else x for x in (a, b)))]


def _whole(a: Array, b: Array) -> list[Array]:
    return [np.multiply(a, b, dtype=np.float64)]


def _whole_and_rest(a: Array, b: Array) -> list[Array]:
    (whole,), (a1, a2), (b1, b2) = _whole(a, b), _halves(a), _halves(b)
    rest = ((a1 * b1 - whole) + a1 * b2 + a2 * b1) + a2 * b2
    return [whole, np.where(np.isfinite(whole) & np.isfinite(rest), rest, 0.0)]


def _halves(x: Array) -> tuple[Array, Array]:
    """Split numbers into two halves of 26 digits."""
    large = abs(x) > LARGE
    x = x * np.where(large, 2.0**-53, 1.0)
    wide = x * SPLIT
    high, scale = wide - (wide - x), np.where(large, 2.0**53, 1.0)
    return high * scale, (x - high) * scale
