"""Compensated and exact sums in NumPy memory, compiled by Numba.

The compiler vectorises the loops over lanes. It must not reorder additions, which would break
the compensation, and the split of numbers.

For exact sums a tile of rows is copied into the cache and split at two levels below its largest
number, by adding and subtracting a constant for each (as in Demmel and Nguyen). If there is a
remainder, it is split again. The parts have so few digits that their sums are exact; these sums
are flushed to the limbs from time to time.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dask_dgpu.kernels.compiled import compiled
from dask_dgpu.kernels.sums.binned import INFINITE, LOWEST, NEGATIVE, NOT_A_NUMBER

Array = Any

SHORTEST = 4  # minimum number of rows of a stretch

TILE = 1024  # elements of a tile, or of one row if that is longer
COUNT_BITS = 10
COUNT = 1 << COUNT_BITS  # numbers that a lane adds before it is flushed to the limbs
DIGITS = 53 - COUNT_BITS  # bits of a part: sums of ``COUNT`` parts are exact
SLACK = 10  # levels are lowered if the numbers are smaller by more bits than this
HUGE_BITS = (900 + 1023) << 52  # from 2**900 on, numbers go to the limbs one by one
ABSOLUTE = (1 << 63) - 1
NONE = -(1 << 20)  # the level without numbers


@compiled
def _two_sum(a: float, b: float) -> tuple[float, float]:
    """Return a sum and its rounding error (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


@compiled
def _fold(
    lanes: Array, lost: Array, width: int, kept: int, sums: Array, compensations: Array
) -> None:
    """Add the lanes of each sum, by a tree while their number is even."""
    while width > kept and (width // kept) % 2 == 0:
        width //= 2
        for j in range(width):
            lanes[j], error = _two_sum(lanes[j], lanes[j + width])
            lost[j] = (lost[j] + lost[j + width]) + error
    for first in range(0, width, kept):
        for j in range(min(kept, width - first)):
            sums[j], error = _two_sum(sums[j], lanes[first + j])
            compensations[j] += lost[first + j] + error


@compiled
def add_compensated(flat: Array, sums: Array, compensations: Array, *walk: int) -> None:
    """Add doubles, and the rounding error of each addition; or single precision, in double.

    Lanes of doubles are folded into the sums after each stretch of about sqrt(rows) rows. The error
    of the summed errors then grows with the number of rows, not with its square. Single precision
    needs no compensation in the lanes, and one stretch.
    """
    start, outer, across, rows, down, width, along, most, kept = walk
    lanes, lost = np.empty(most), np.empty(most)
    single = flat.itemsize == 4
    stretch = rows if single else max(SHORTEST, math.ceil(math.sqrt(rows)))
    for o in range(outer):
        for lo in range(0, width, most):
            n = min(most, width - lo)
            for begin in range(0, rows, stretch):
                lanes[:n] = 0.0
                lost[:n] = 0.0
                for r in range(begin, min(begin + stretch, rows)):
                    at = start + o * across + r * down + lo * along
                    row = flat[at : at + (n - 1) * along + 1]
                    if single and along == 1:
                        for j in range(n):
                            lanes[j] += row[j]
                    elif single:
                        for j in range(n):
                            lanes[j] += row[j * along]
                    elif along == 1:
                        for j in range(n):
                            lanes[j], error = _two_sum(lanes[j], row[j])
                            lost[j] += error
                    else:
                        for j in range(n):
                            lanes[j], error = _two_sum(lanes[j], row[j * along])
                            lost[j] += error
                _fold(lanes, lost, n, min(kept, n), sums[o, lo:], compensations[o, lo:])


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
    tile: Array, size: int, n: int, kept: int, limbs: Array, used: Array, special: Array
) -> None:
    """Move huge numbers to the limbs; flag infinities and NaN."""
    for i, bits in enumerate(tile[:size].view(np.int64)):
        absolute = bits & ABSOLUTE
        if absolute >= HUGE_BITS:
            j = (i % n) % kept
            exponent = absolute >> 52
            mantissa = absolute & ((1 << 52) - 1)
            if exponent == 0x7FF:
                kind = INFINITE if bits > 0 else NEGATIVE
                special[j] |= NOT_A_NUMBER if mantissa else kind
            else:
                mantissa |= 1 << 52
                _deposit(limbs[j], used, mantissa if bits > 0 else -mantissa, exponent - 1)
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
                        _deposit_huge(tile, size, n, k, mine, used, marks)
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
