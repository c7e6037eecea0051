"""The choice of a matrix for a long axis, and of its chunks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import scipy.fft

EVEN = 1.1
"""A largest block of at most this multiple of the average counts as even."""
UNEVEN = 2.0
"""A largest block of this multiple of the average is too large."""


@dataclass(frozen=True)
class Matrix:
    """The shape of a long axis as a row-major matrix."""

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
        Number of blocks along the axis at every step.
    cuts : sequence of int, optional
        Where chunks begin. Among matrices with even blocks, those with rows that begin there
        are preferred, since their first step moves nothing; then the most square one.
    enough : int, optional
        Blocks of at most this number of elements are never too large.

    Returns
    -------
    Matrix or None
        ``None`` if every matrix has a block that is too large.
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
    """Return the size of the largest of even chunks of an axis."""
    return -(-length // min(parts, length))


def convolution_matrix(n: int) -> Matrix:
    """Return a nearly square matrix of at least ``2 n - 1`` elements.

    Its sides have no large prime factors.
    """
    least = 2 * n - 1
    rows = scipy.fft.next_fast_len(math.isqrt(least - 1) + 1)
    return Matrix(rows, scipy.fft.next_fast_len(-(-least // rows)))


def row_cuts(sizes: Sequence[int], length: int, width: int) -> tuple[int, ...]:
    """Return the chunks of an axis, each moved to begin at the nearest row.

    ``length`` is the new end of the axis, ``width`` the length of a row.
    """
    moved = {(cut + width // 2) // width * width for cut in accumulate(sizes)}
    inner = sorted(cut for cut in moved if 0 < cut < length)
    return tuple(high - low for low, high in pairwise([0, *inner, length]))
