"""Exact sums in NumPy memory, compiled by Numba.

A tile of rows is copied into the cache and split at two levels below its largest number, by
adding and subtracting a constant for each (as in Demmel and Nguyen). If there is a remainder,
it is split again. The parts have so few digits that their sums are exact; these sums are
flushed to the limbs from time to time.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dask_dgpu.kernels.compiled import compiled, one_compiles
from dask_dgpu.kernels.sums.limbs import INFINITE, LOWEST, NEGATIVE, NOT_A_NUMBER

Array = Any

TILE = 1024
"""Elements of a tile, or of one row if that is longer."""

COUNT_BITS = 10
COUNT = 1 << COUNT_BITS
"""Numbers that a lane adds before it is flushed to the limbs."""

DIGITS = 53 - COUNT_BITS
"""Bits of a part: sums of ``COUNT`` parts are exact."""

SLACK = 10
"""Levels are lowered if the numbers are smaller by more bits than this."""

HUGE = 900
"""Numbers from this power of two on, and infinities and NaN, go to the limbs one by one."""

ABSOLUTE = (1 << 63) - 1
HUGE_BITS = (HUGE + 1023) << 52
NONE = -(1 << 20)


@compiled
def _deposit(limbs: Array, used: Array, mantissa: int, position: int) -> None:
    """Add an integer of less than 64 bits to the limbs, at a bit position."""
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
    """Add lanes, sums of ``count`` multiples of ``2**level``, to the limbs; clear them."""
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
    """Return the bits of the largest absolute value; bits and values have the same order."""
    largest = 0
    for i in range(n):
        largest = max(largest, bits[i] & ABSOLUTE)
    return largest


@compiled
def _deposit_huge(
    tile: Array,
    bits: Array,
    size: int,
    n: int,
    kept: int,
    limbs: Array,
    used: Array,
    special: Array,
) -> None:
    """Move huge numbers to the limbs; flag infinities and NaN."""
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
    """Add a walk to limbs of shape (outer, kept, LIMBS); update the range of limbs in use."""
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
                height = min(step, rows - begin)
                size = height * n
                for r in range(height):
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
                        _deposit_huge(tile, bits, size, n, k, mine, used, marks)
                        largest = _largest(bits, size)
                        continue
                    exponent = (largest >> 52) - 1022
                    if exponent > top or count + height > COUNT:
                        _flush(mine, used, first, n, k, high, count)
                        _flush(mine, used, second, n, k, low, count)
                        count = 0
                        if exponent > top or exponent < top - SLACK:
                            top = exponent
                            high = max(top - DIGITS, LOWEST)
                            low = max(high - 1 - DIGITS, LOWEST)
                    count += height
                    big, small = math.ldexp(1.5, high + 52), math.ldexp(1.5, low + 52)
                    left = 0
                    for r in range(height):
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
