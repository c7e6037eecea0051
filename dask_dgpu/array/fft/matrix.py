"""Which matrix a long axis is written as, and where it is cut."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import scipy.fft

EVEN = 1.1
"""A largest block of so many times the share is as good as one of the share."""
UNEVEN = 2.0
"""A largest block of so many times the share is too large."""


@dataclass(frozen=True)
class Matrix:
    """How a long axis is written as a matrix, row after row."""

    rows: int
    columns: int

    @property
    def n(self) -> int:
        """Length of the axis."""
        return self.rows * self.columns


def matrix_for(n: int, parts: int, cuts: Sequence[int] = (), *, enough: int = 1) -> Matrix | None:
    """Choose the matrix for a transform of length ``n``.

    Parameters
    ----------
    n : int
        Length of the transform.
    parts : int
        Number of blocks that the axis should be in all the time.
    cuts : sequence of int, optional
        Where the axis is cut. Among matrices whose blocks are even enough, one with a cut
        before a row in all these places is preferred, since it moves nothing at first;
        then the one nearest to a square.
    enough : int, optional
        Blocks of so many elements along the axis are small enough, however few.

    Returns
    -------
    Matrix or None
        ``None`` if all have a block of twice the share or more.
    """
    small = np.arange(1, math.isqrt(n) + 1, dtype=np.int64)
    divisors = small[n % small == 0].tolist()
    best: tuple[tuple[float, bool, int], Matrix] | None = None
    for columns in sorted({*divisors, *(n // divisor for divisor in divisors)}):
        matrix = Matrix(n // columns, columns)
        largest = max(largest_block(side, parts) * (n // side) for side in (columns, n // columns))
        unevenness = largest * parts / n
        if unevenness >= UNEVEN and largest > enough:
            continue
        misses = any(cut % columns for cut in cuts)
        key = (max(EVEN, unevenness), misses, max(matrix.rows, columns))
        if best is None or key < best[0]:
            best = key, matrix
    return None if best is None else best[1]


def largest_block(length: int, parts: int) -> int:
    """Return the longest of even chunks of an axis."""
    return -(-length // min(parts, length))


def convolution_matrix(n: int) -> Matrix:
    """Return a matrix that is nearly square, of ``2 n - 1`` elements or a few more.

    Parameters
    ----------
    n : int
        Length of the transform.

    Returns
    -------
    Matrix
        Its sides have no large prime factors.
    """
    least = 2 * n - 1
    rows = scipy.fft.next_fast_len(math.isqrt(least - 1) + 1)
    return Matrix(rows, scipy.fft.next_fast_len(-(-least // rows)))


def row_cuts(sizes: Sequence[int], length: int, width: int) -> tuple[int, ...]:
    """Return the chunks of an axis when each cut moves to the nearest multiple of a width.

    Parameters
    ----------
    sizes : sequence of int
        The chunks.
    length : int
        Where the axis ends from now on.
    width : int
        Length of a row.
    """
    moved = {(cut + width // 2) // width * width for cut in accumulate(sizes)}
    inner = sorted(cut for cut in moved if 0 < cut < length)
    return tuple(high - low for low, high in pairwise([0, *inner, length]))
