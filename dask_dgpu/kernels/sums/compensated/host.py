"""Compensated sums in NumPy memory, compiled by Numba.

The compiler vectorises the loops over lanes. It must not reorder additions, which would break
the compensation.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dask_dgpu.kernels.compiled import compiled, one_compiles

Array = Any

SHORTEST = 4
"""Minimum number of rows of a stretch."""


@compiled
def _fold(
    lanes: Array, lost: Array, width: int, kept: int, sums: Array, compensations: Array
) -> None:
    """Add the lanes of each sum, by a tree while their number is even."""
    while width > kept and (width // kept) % 2 == 0:
        width //= 2
        for j in range(width):
            a, b = lanes[j], lanes[j + width]
            total = a + b
            part = total - a
            lost[j] = (lost[j] + lost[j + width]) + ((a - (total - part)) + (b - part))
            lanes[j] = total
    for first in range(0, width, kept):
        for j in range(min(kept, width - first)):
            a, b = sums[j], lanes[first + j]
            total = a + b
            part = total - a
            compensations[j] += lost[first + j] + ((a - (total - part)) + (b - part))
            sums[j] = total


@compiled
def add_exact(flat: Array, sums: Array, compensations: Array, *walk: int) -> None:
    """Add single precision numbers in double, without compensation in the lanes."""
    start, outer, across, rows, down, width, along, most, kept = walk
    lanes, lost = np.empty(most), np.empty(most)
    for o in range(outer):
        for lo in range(0, width, most):
            n = min(most, width - lo)
            lanes[:n] = 0.0
            lost[:n] = 0.0
            for r in range(rows):
                at = start + o * across + r * down + lo * along
                if along == 1:
                    row = flat[at : at + n]
                    for j in range(n):
                        lanes[j] += row[j]
                else:
                    for j in range(n):
                        lanes[j] += flat[at + j * along]
            _fold(lanes, lost, n, min(kept, n), sums[o, lo:], compensations[o, lo:])


@compiled
def add_compensated(flat: Array, sums: Array, compensations: Array, *walk: int) -> None:
    """Add doubles; sum the rounding error of each addition, found by Knuth's two-sum.

    The lanes are folded into the sums after each stretch of about sqrt(rows) rows. The error of
    the summed errors then grows with the number of rows, not with its square.
    """
    start, outer, across, rows, down, width, along, most, kept = walk
    lanes, lost = np.empty(most), np.empty(most)
    stretch = max(SHORTEST, math.ceil(math.sqrt(rows)))
    for o in range(outer):
        for lo in range(0, width, most):
            n = min(most, width - lo)
            for begin in range(0, rows, stretch):
                lanes[:n] = 0.0
                lost[:n] = 0.0
                for r in range(begin, min(begin + stretch, rows)):
                    at = start + o * across + r * down + lo * along
                    row = flat[at : at + (n - 1) * along + 1]
                    if along == 1:
                        for j in range(n):
                            a, b = lanes[j], row[j]
                            total = a + b
                            part = total - a
                            lost[j] += (a - (total - part)) + (b - part)
                            lanes[j] = total
                    else:
                        for j in range(n):
                            a, b = lanes[j], row[j * along]
                            total = a + b
                            part = total - a
                            lost[j] += (a - (total - part)) + (b - part)
                            lanes[j] = total
                _fold(lanes, lost, n, min(kept, n), sums[o, lo:], compensations[o, lo:])


ADD = {"float32": one_compiles(add_exact), "float64": one_compiles(add_compensated)}
