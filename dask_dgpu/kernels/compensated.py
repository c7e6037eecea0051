"""Compensated sums of a block: the sum, and what rounding has taken from it.

Double precision is summed with Knuth's two-sum, which finds the rounding error of each
addition exactly; the errors are summed beside (Kahan and Babuska; Neumaier; Ogita, Rump and
Oishi, "Accurate sum and dot product", SIAM J. Sci. Comput. 26, 2005). Single and half
precision are summed in double, which is the same with less work: a double is a single and
its compensation. Where the result is to be a double, they are summed as doubles are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_dgpu.kernels.lanes import forwards, steps_of
from dask_dgpu.kernels.parts import as_real, in_parts, zeros_for

Array = Any


@dataclass(frozen=True)
class Pair:
    """Sums as unevaluated pairs.

    Parameters
    ----------
    sums, compensations : array
        Of float64 and one shape; the sum is that of both. Where ``sums`` is not finite,
        ``compensations`` means nothing.
    """

    sums: Array
    compensations: Array

    def __sizeof__(self) -> int:
        """Return the bytes of both, which Dask asks for."""
        return sys.getsizeof(self.sums) + sys.getsizeof(self.compensations)

    def each(self, function: Callable[[Array], Array]) -> Pair:
        """Return a pair made by a function of either array."""
        return Pair(function(self.sums), function(self.compensations))

    def on_host(self) -> Pair:
        """Return the pair in NumPy memory."""
        if isinstance(self.sums, np.ndarray | np.generic):
            return self
        return self.each(lambda array: array.get())

    def reshaped(self, shape: tuple[int, ...]) -> Pair:
        """Return the same sums in another shape."""
        return self.each(lambda array: array.reshape(shape))

    def value(self) -> Array:
        """Return the sums, rounded to float64."""
        finite = np.isfinite(self.sums)
        return np.where(finite, self.sums + np.where(finite, self.compensations, 0.0), self.sums)


def block_sum(block: Array, axes: Sequence[int], result: str = "float32") -> Pair:
    """Sum a block along some of its axes, in one pass over its memory.

    Parameters
    ----------
    block : numpy.ndarray or cupy.ndarray
        Of any real or complex dtype and any strides; it is not copied. Integers count as
        float64.
    axes : sequence of int
        The axes to sum along, none of them negative.
    result : str
        The real dtype that sums are rounded to. For float64 blocks of all dtypes are summed as
        if they were of it.

    Returns
    -------
    Pair
        Of the shape of the other axes, on the device of the block. Complex numbers have
        another axis at the end, for real and imaginary part.

    Notes
    -----
    The order of the additions depends on shape and strides alone. An infinity, or an
    overflow of float64 on the way, gives what a plain sum gives: an infinity, or NaN if
    there are both.
    """
    block = as_real(block)
    if block.size == 0:
        zeros = zeros_for(block, axes, "float64")
        return Pair(zeros, zeros)
    dtypes = ("float64",) if result == "float64" else ("float32", "float64")
    return in_parts(block, axes, dtypes, _sum_of, merged)


def _sum_of(block: Array, axes: Sequence[int]) -> Pair:
    block, turned = forwards(block, axes)
    if isinstance(block, np.ndarray):
        return _on_host(block, axes).each(lambda sums: sums[turned])
    from dask_dgpu.kernels.compensated_cuda import block_sum_cuda

    return block_sum_cuda(block, axes).each(lambda sums: sums[turned])


def _on_host(block: Array, axes: Sequence[int]) -> Pair:
    from dask_dgpu.kernels.compensated_host import ADD

    flat, form, shape, steps = steps_of(block, axes)
    add, pair = ADD[flat.dtype.name], Pair(np.zeros(shape), np.zeros(shape))
    for target, walks in steps:
        for walk in walks:
            add(flat, pair.sums[target], pair.compensations[target], *walk)
    return pair.each(form.restored)


def merged(pairs: Sequence[Pair]) -> Pair:
    """Return the sum of pairs of one shape, added by a tree in their order."""
    level = list(pairs)
    while len(level) > 1:
        level = [_added(*level[at : at + 2]) for at in range(0, len(level), 2)]
    return level[0]


def _added(left: Pair, right: Pair | None = None) -> Pair:
    if right is None:
        return left
    a, b = left.sums, right.sums
    with np.errstate(invalid="ignore", over="ignore"):
        total = a + b
        part = total - a
        lost = (a - (total - part)) + (b - part)
        return Pair(total, (left.compensations + right.compensations) + lost)
