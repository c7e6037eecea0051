"""Exact sums in NumPy memory, compiled by Numba at first use.

A tile of rows is copied into a cache, and cut at two levels that its largest number gives,
by adding and subtracting a constant each (as in Demmel and Nguyen). What is left, if
anything, is a tile again. Sums of what was cut off are exact, since they have few enough
digits; now and then they go to the limbs.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dask_dgpu.kernels.compiled import compiled, one_compiles
from dask_dgpu.kernels.sums.limbs import INFINITE, LOWEST, NEGATIVE, NOT_A_NUMBER

Array = Any

TILE = 1024
"""Elements of a tile, or one row if that is longer."""

COUNT_BITS = 10
COUNT = 1 << COUNT_BITS
"""Numbers a lane may add before it goes to the limbs."""

DIGITS = 53 - COUNT_BITS
"""Bits that are cut off a number below its power of two, so that so many sum up exactly."""

SLACK = 10
"""Levels stay where they are as long as numbers are not smaller by more bits than this."""

HUGE = 900
"""Numbers from this power of two on go to the limbs one by one, as what is not finite does."""

ABSOLUTE = (1 << 63) - 1
HUGE_BITS = (HUGE + 1023) << 52
NONE = -(1 << 20)


@compiled
def _deposit(limbs: Array, used: Array, mantissa: int, position: int) -> None:
    """Add an integer of less than 64 bits at a bit of the limbs."""
    at, shift = position >> 5, position & 31
    low = (mantissa & 0xFFFFFFFF) << shift
    high = (mantissa >> 32) << shift
    limbs[at] += low & 0xFFFFFFFF
    limbs[at + 1] += (low >> 32) + (high & 0xFFFFFFFF)
    limbs[at + 2] += high >> 32
    used[0] = min(used[0], at)
    used[1] = max(used[1], at + 3)


@compiled
def _flush(
    limbs: Array, used: Array, lanes: Array, n: int, kept: int, level: int, count: int
) -> None:
    """Add lanes, each the sum of so many multiples of a power of two, to the limbs."""
    width = n
    while width > kept and (width // kept) % 2 == 0 and 2 * count <= COUNT:
        width //= 2
        count *= 2
        for j in range(width):
            lanes[j] += lanes[j + width]
    for first in range(0, width, kept):
        for j in range(min(kept, width - first)):
            if lanes[first + j] != 0.0:
                mantissa = np.int64(math.ldexp(lanes[first + j], -level))
                _deposit(limbs[j], used, mantissa, level - LOWEST)
    lanes[:n] = 0.0


@compiled
def _largest(bits: Array, n: int) -> int:
    """Return the largest absolute value as its bits, which are in the same order."""
    largest = 0
    for i in range(n):
        largest = max(largest, bits[i] & ABSOLUTE)
    return largest


@compiled
def _take_huge(
    tile: Array,
    bits: Array,
    size: int,
    n: int,
    kept: int,
    limbs: Array,
    used: Array,
    special: Array,
) -> None:
    """Move huge numbers to the limbs, and note what is not finite."""
    for i in range(size):
        absolute = bits[i] & ABSOLUTE
        if absolute >= HUGE_BITS:
            j = (i % n) % kept
            exponent = absolute >> 52
            mantissa = absolute & ((1 << 52) - 1)
            if exponent == 0x7FF:
                kind = INFINITE if bits[i] > 0 else NEGATIVE
                special[j] |= NOT_A_NUMBER if mantissa else kind
            else:
                mantissa |= 1 << 52
                _deposit(limbs[j], used, mantissa if bits[i] > 0 else -mantissa, exponent - 1)
            tile[i] = 0.0


@compiled
def add_binned(flat: Array, limbs: Array, used: Array, special: Array, *walk: int) -> None:
    """Add a walk to the limbs, (outer, kept, LIMBS), and note the first and last + 1 used."""
    start, outer, across, rows, down, width, along, most, kept = walk
    first, second = np.zeros(most), np.zeros(most)
    tile = np.empty(max(most, TILE))
    bits = tile.view(np.int64)
    for o in range(outer):
        for lo in range(0, width, most):
            n = min(most, width - lo)
            k = min(kept, n)
            mine, marks = limbs[o, lo:], special[o, lo:]
            step = max(1, TILE // n)
            top, count, high, low = NONE, 0, 0, 0
            for begin in range(0, rows, step):
                taken = min(step, rows - begin)
                size = taken * n
                for r in range(taken):
                    at = start + o * across + (begin + r) * down + lo * along
                    row = flat[at : at + (n - 1) * along + 1]
                    copy = tile[r * n : (r + 1) * n]
                    if along == 1:
                        for j in range(n):
                            copy[j] = row[j]
                    else:
                        for j in range(n):
                            copy[j] = row[j * along]
                largest = _largest(bits, size)
                while largest:
                    if largest >= HUGE_BITS:
                        _take_huge(tile, bits, size, n, k, mine, used, marks)
                        largest = _largest(bits, size)
                        continue
                    exponent = (largest >> 52) - 1022
                    if exponent > top or count + taken > COUNT:
                        _flush(mine, used, first, n, k, high, count)
                        _flush(mine, used, second, n, k, low, count)
                        count = 0
                        if exponent > top or exponent < top - SLACK:
                            top = exponent
                            high = max(top - DIGITS, LOWEST)
                            low = max(high - 1 - DIGITS, LOWEST)
                    count += taken
                    big, small = math.ldexp(1.5, high + 52), math.ldexp(1.5, low + 52)
                    left = 0
                    for r in range(taken):
                        row = tile[r * n : (r + 1) * n]
                        for j in range(n):
                            value = row[j]
                            part = (value + big) - big
                            first[j] += part
                            value -= part
                            part = (value + small) - small
                            second[j] += part
                            value -= part
                            row[j] = value
                            left |= value != 0.0
                    if not left:
                        break
                    _flush(mine, used, first, n, k, high, count)
                    _flush(mine, used, second, n, k, low, count)
                    top, count = NONE, 0
                    largest = _largest(bits, size)
            _flush(mine, used, first, n, k, high, count)
            _flush(mine, used, second, n, k, low, count)


ADD = one_compiles(add_binned)
