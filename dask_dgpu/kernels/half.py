"""Rows of numbers in half precision, each row scaled by a power of two.

The largest finite number of a row is scaled to just below a fixed power of two. Scaling is exact.
No finite number overflows. Numbers that underflow are counted, and none becomes zero: its product
with an infinity must be infinite. Infinities, NaN and zeros stay.
The same array operations run on NumPy and on CuPy; bfloat16 is made of the bits of float32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dask_dgpu.kernels.zeros import slabs

Array = Any


class Format(NamedTuple):
    """Half precision: rows are scaled below ``2**top``.

    ``top_bits`` are the bits of this power, and ``normal_bits`` those of the least normal number.
    ``least_bits`` stand for all numbers that are too small; GPUs read no smaller bfloat16.
    ``eps`` is the distance from 1 to the next number.
    """

    top: int
    top_bits: int
    normal_bits: int
    least_bits: int
    eps: float


FORMATS = {
    "float16": Format(top=15, top_bits=0x7800, normal_bits=0x0400, least_bits=0x0001, eps=2.0**-10),
    "bfloat16": Format(top=0, top_bits=0x3F80, normal_bits=0x0080, least_bits=0x0080, eps=2.0**-7),
}

SIGN = 0x8000


def narrow(values: Array, bits: Array, exponents: Array, dtype: str) -> Any:
    """Convert rows of float32 or float64 to ``dtype``, one of :data:`FORMATS`.

    Parameters
    ----------
    values : array
        Of shape (m, n), not empty.
    bits : array
        Output, uint16 of shape (m, n): the bits of the scaled numbers.
    exponents : array
        Output, int16 of shape (m,): the finite numbers of a row are below ``2**exponent``.
    dtype : str
        The half precision.

    Returns
    -------
    int or array
        The count of numbers that became subnormal or the least number. These are below about
        ``2**-28`` times the largest of their row for float16. On a GPU an array, so the host need
        not wait.
    """
    form, most = FORMATS[dtype], np.finfo(values.dtype).maxexp
    count: Any = 0
    for rows, _ in slabs(values):
        part = values[rows]
        with np.errstate(all="ignore"):
            sizes = np.abs(part)
            largest = sizes.max(axis=1)
            if _some(~np.isfinite(largest)):
                largest = np.where(sizes < np.inf, sizes, 0).max(axis=1)
            exponent = np.frexp(largest)[1]
            rounded = _rounded(_scaled(part, form.top - exponent), dtype)
        size = rounded & (SIGN - 1)
        small = (size < form.normal_bits) & (sizes != 0)
        count = count + np.count_nonzero(small)
        if _some(small):
            rounded |= (small & (size == 0)) * np.uint16(form.least_bits)
        if _some(exponent == most):  # rounded up, these would overflow when they are widened
            rounded -= (size == form.top_bits) & (exponent == most)[:, None]
        bits[rows], exponents[rows] = rounded, exponent
    return count


def widen(bits: Array, exponents: Array, out: Array, dtype: str) -> None:
    """Convert the results of :func:`narrow` back, to the dtype of ``out``."""
    for rows, _ in slabs(out):
        with np.errstate(all="ignore"):
            if dtype == "float16":
                values = bits[rows].view(np.float16).astype(out.dtype)
            else:
                wide = bits[rows].astype(np.uint32)
                wide <<= 16
                values = wide.view(np.float32).astype(out.dtype, copy=False)
            shifts = exponents[rows].astype(np.int32) - FORMATS[dtype].top
            out[rows] = _scaled(values, shifts)


def _some(mask: Array) -> bool:
    """Whether any is true; on a GPU always, so the host need not wait."""
    return not isinstance(mask, np.ndarray) or bool(mask.any())


def _scaled(values: Array, shifts: Array) -> Array:
    """Return rows times powers of two, in two factors if one may overflow."""
    ones, rest = np.ones_like(values[:, 0]), shifts
    if _some(np.abs(shifts) >= np.finfo(values.dtype).maxexp - 1):
        rest = shifts // 2
    scaled = values * np.ldexp(ones, rest)[:, None]
    if rest is not shifts:
        scaled *= np.ldexp(ones, shifts - rest)[:, None]
    return scaled


def _rounded(values: Array, dtype: str) -> Array:
    """Return the bits of numbers rounded to nearest, ties to even."""
    if dtype == "float16":
        return values.astype(np.float16).view(np.uint16)
    wide = values.astype(np.float32, copy=False)
    bits = wide.view(np.uint32)
    nearest = (bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16
    quiet = np.where(np.isnan(wide), 0x7FC0, nearest)
    return quiet.astype(np.uint16)
