"""Exact sums by Python's integers, and numbers that are hard to sum."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np

Array = Any
UNIT = 1074
"""Sums are counted in ``2**-1074``, the smallest double."""

DIGITS, HALF = 53, 26

FORMATS = {
    "bfloat16": (8, -133, 128),
    "float16": (11, -24, 16),
    "float32": (24, -149, 128),
    "float64": (53, -1074, 1024),
}
"""Binary digits, the exponent of the smallest number, and the one that is too large."""

FAMILIES = (
    "uniform",
    "condition 1e4",
    "condition 1e8",
    "condition 1e16",
    "rising",
    "falling",
    "alternating",
    "subnormal",
    "huge and tiny",
    "signed zeros",
    "wide",
    "overflow that cancels",
)


def units(value: Any) -> int:
    """Return a finite number as a multiple of the smallest double."""
    numerator, denominator = float(value).as_integer_ratio()
    return numerator * (1 << UNIT) // denominator


def exact(values: Array) -> int:
    """Return the sum of finite real numbers, exactly: first of integers for each exponent."""
    fractions, exponents = np.frexp(np.asarray(values, np.float64).ravel())
    if not fractions.size:
        return 0
    order = np.argsort(exponents, kind="stable")
    integers, exponents = np.ldexp(fractions, DIGITS).astype(np.int64)[order], exponents[order]
    starts = np.flatnonzero(np.diff(exponents, prepend=exponents[0] - 1))
    # halves, so that 64 bits are enough for 2**36 numbers
    high, low = (
        np.add.reduceat(half, starts).tolist()
        for half in (integers >> HALF, integers & ((1 << HALF) - 1))
    )
    shifts = (exponents[starts] + UNIT).tolist()
    sums = zip(high, low, shifts, strict=True)
    return sum(((h << HALF) + part) << shift for h, part, shift in sums) >> DIGITS


def to_nearest(sum_: int, dtype: str) -> Any:
    """Return an exact sum, rounded once, by integers alone."""
    digits, lowest, overflow = FORMATS[dtype]
    exponent = max(abs(sum_).bit_length() - digits, lowest + UNIT)
    whole = round(Fraction(sum_, 1 << exponent))  # Python rounds a tie to even
    infinite = abs(whole) << exponent >= 1 << (overflow + UNIT)
    size = math.inf if infinite else math.ldexp(abs(whole), exponent - UNIT)
    return np.dtype(dtype).type(size if sum_ >= 0 else -size)


def within_bound(value: Any, values: Array, eps: float) -> bool:
    """Whether a sum has an error of at most 2 eps |s| + n eps^2 sum |x|."""
    sum_, magnitude = exact(values), exact(np.abs(values))
    unit = Fraction(float(eps))
    allowed = 2 * unit * abs(sum_) + values.size * unit**2 * magnitude
    return abs(units(value) - sum_) <= allowed


def family(name: str, n: int, dtype: str, seed: int = 0) -> Array:
    """Return ``n`` numbers of a kind."""
    rng = np.random.default_rng([seed, n, FAMILIES.index(name)])
    info = ml_dtypes.finfo(dtype)
    values = rng.standard_normal(n)
    if name.startswith("condition"):  # pairs that cancel but for a small part
        small = values / float(name.split()[1])
        values[1::2] = -values[: 2 * (n // 2) : 2]
        values = rng.permutation(values.astype(dtype).astype(float) + small)
    elif name in ("rising", "falling"):
        values = np.sort(np.exp(2 * values))[:: 1 if name == "rising" else -1]
    elif name == "alternating":
        values = np.where(np.arange(n) % 2, -1.0, 1.0) / (1 + np.arange(n))
    elif name == "subnormal":
        values = values * float(info.smallest_subnormal) * 1000
    elif name == "huge and tiny":
        values = np.where(rng.random(n) < 0.5, values * (float(info.max) / 1024), values * 1e-30)
        values[1::2] = -values[: 2 * (n // 2) : 2]
        values /= max(n, 1)
    elif name == "signed zeros":
        values = np.where(rng.random(n) < 0.5, -0.0, 0.0)
    elif name == "wide":
        low, high = int(info.minexp) + 4, int(info.maxexp) - 20
        values = np.ldexp(values, rng.integers(low, high, n))
    elif name == "overflow that cancels":  # and ones are left
        half = np.abs(np.clip(values[: n // 2], 0.1, 2)) * (float(info.max) / 2)
        values = np.concatenate([half, np.ones(n % 2), -half])
    return values.astype(dtype)
