"""Integers of thousands of bits as limbs: normalised, added and rounded once.

A sum is a multiple of ``2**LOWEST``, the smallest double. Limb ``i`` counts multiples of
``2**(32 * i)`` of it. Before carries must go on to the next limb, it has room for 2**30
additions of 32 bits::

    limb      67 ...            2          1          0
    bits    sign ... |..........|..........|..........|
            2**1101         2**-1010   2**-1042   2**-1074
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_dgpu.kernels.sums.narrowed import narrowed

Array = Any

LOWEST = -1074
"""The power of two of the smallest double."""

BITS = 32
"""Bits of a normalised limb."""

LIMBS = 68
"""Limbs for 2**63 of the largest doubles, and a sign."""

MASK = (1 << BITS) - 1

INFINITE, NEGATIVE, NOT_A_NUMBER = 1, 2, 4
"""Flags of a sum with +inf, -inf or NaN among its numbers."""


def normalised(limbs: Array) -> Array:
    """Return limbs, (limbs, ...), with the same value and 32 bits each, the last with the sign.

    A last carry appends a limb.
    """
    limbs = limbs.copy()
    for at in range(len(limbs) - 1):
        limbs[at + 1] += limbs[at] >> BITS
        limbs[at] &= MASK
    if len(limbs) and np.any((limbs[-1] >> (BITS - 1)) + 1 >> 1):
        limbs = np.concatenate([limbs, limbs[-1:] >> BITS])
        limbs[-2] &= MASK
    return limbs


def trimmed(limbs: Array) -> tuple[int, Array]:
    """Return the first limb in use by any sum, and the limbs from there to the last in use."""
    used = np.flatnonzero(limbs.any(axis=tuple(range(1, limbs.ndim))))
    if not len(used):
        return 0, limbs[:0]
    return int(used[0]), limbs[used[0] : used[-1] + 1]


def rounded(low: int, limbs: Array, special: Array, dtype: str) -> Array:
    """Return the sums, each rounded once, to nearest and ties to even.

    ``low`` is the number of the first limb, ``special`` has the flags of infinities and NaN, and
    ``dtype`` is bfloat16, float16, float32 or float64.
    """
    shape = special.shape
    limbs = normalised(limbs)
    negative = limbs[-1] < 0 if len(limbs) else np.zeros(shape, bool)
    limbs = np.where(negative, -limbs, limbs)
    zeros = np.zeros((3, *shape), np.int64)
    limbs = np.concatenate([zeros, normalised(limbs)])  # so that two limbs below the highest exist
    numbers = np.arange(len(limbs)).reshape(-1, *(1,) * len(shape))
    highest = np.where(limbs != 0, numbers, 2).max(axis=0)
    below = np.where(numbers < highest - 2, limbs, 0).any(axis=0)
    one, two, three = (
        np.take_along_axis(limbs, highest[None] - back, axis=0)[0].astype(np.uint64)
        for back in range(3)
    )
    length = np.frexp(one.astype(np.float64))[1]  # bits of the highest limb
    spare = (BITS - length).astype(np.uint64)
    mantissa = ((one << np.uint64(BITS)) | two) << spare | three >> (np.uint64(BITS) - spare)
    rest = (three & ((np.uint64(1) << (np.uint64(BITS) - spare)) - np.uint64(1))) != 0
    mantissa |= (rest | below).astype(np.uint64)  # no tie if any bit follows
    exponent = (highest - 3 + low - 1) * BITS + LOWEST - (BITS - length)
    if dtype != "float64":  # round to odd: the conversion rounds again
        lost = mantissa & np.uint64(0x7FF)
        mantissa = (mantissa - lost) | ((lost != 0).astype(np.uint64) << np.uint64(11))
    both = INFINITE | NEGATIVE
    with np.errstate(over="ignore"):
        values = np.ldexp(mantissa.astype(np.float64), exponent)
        values = np.where(negative, -values, values)
        values = np.where((special & both) == INFINITE, np.inf, values)
        values = np.where((special & both) == NEGATIVE, -np.inf, values)
        nan = ((special & both) == both) | ((special & NOT_A_NUMBER) != 0)
        return narrowed(np.where(nan, np.nan, values), dtype)
