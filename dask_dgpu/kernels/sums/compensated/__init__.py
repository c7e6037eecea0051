"""Compensated sums of a block: the sum, and what rounding has taken from it.

Double precision is summed with Knuth's two-sum, which finds the rounding error of each
addition exactly; the errors are summed beside (Kahan and Babuska; Neumaier; Ogita, Rump and
Oishi, "Accurate sum and dot product", SIAM J. Sci. Comput. 26, 2005). Single and half
precision are summed in double, which is the same with less work: a double is a single and
its compensation. Where the result is to be a double, they are summed as doubles are.

Doubles may overflow on the way to a sum that does not. What does is summed once more in
units of ``2**64``, beside the rest: small numbers would lose digits there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dask_dgpu.kernels.sums.lanes import forwards, steps_of
from dask_dgpu.kernels.sums.parts import as_real, in_parts, parts_of, zeros_for

Array = Any

LARGE = 2.0**64
"""The unit of what overflows: no array has more numbers."""


@dataclass(frozen=True)
class Pair:
    """Sums as unevaluated pairs.

    Parameters
    ----------
    sums, compensations : array
        Of float64 and one shape; the sum is that of both. Where ``sums`` is not finite,
        ``compensations`` means nothing.
    large : Pair, optional
        What is to be added in units of ``LARGE``, of sums that may overflow: those of
        doubles. What is not finite is there, and nowhere else.
    """

    sums: Array
    compensations: Array
    large: Pair | None = None

    @classmethod
    def of(cls, arrays: Sequence[Array]) -> Pair:
        """Return what :meth:`arrays` are of."""
        sums, compensations, *large = arrays
        return cls(sums, compensations, cls.of(large) if large else None)

    def arrays(self) -> list[Array]:
        """Return the two arrays, or all four."""
        return [self.sums, self.compensations, *(self.large.arrays() if self.large else ())]

    def __sizeof__(self) -> int:
        """Return the bytes of all, which Dask asks for."""
        return sum(map(sys.getsizeof, self.arrays()))

    def each(self, function: Callable[[Array], Array]) -> Pair:
        """Return a pair made by a function of each array."""
        return Pair.of(list(map(function, self.arrays())))

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
        own = np.where(finite, self.sums + np.where(finite, self.compensations, 0.0), self.sums)
        if self.large is None:
            return own
        whole = _added(_in_large(self), self.large).value()
        with np.errstate(over="ignore"):
            return np.where(self.large.sums + self.large.compensations == 0, own, whole * LARGE)


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
        another axis at the end, for real and imaginary part. Of doubles it has what is
        large.

    Notes
    -----
    The order of the additions depends on shape and strides alone. An infinity gives what a
    plain sum gives: an infinity, or NaN if there are both. Doubles that overflow on the way
    are read twice.
    """
    block = as_real(block)
    if block.size == 0:
        zeros = zeros_for(block, axes, "float64")
        return Pair(zeros, zeros, Pair(zeros, zeros) if block.dtype == np.float64 else None)
    if block.dtype == np.float64:
        return _sum_of_doubles(block, axes)
    dtypes = ("float64",) if result == "float64" else ("float32", "float64")
    return in_parts(block, axes, dtypes, _sum_of, merged)


def _sum_of_doubles(block: Array, axes: Sequence[int]) -> Pair:
    pair = _sum_of(block, axes)
    over = _overflown(pair)
    zeros = np.zeros_like(pair.sums)
    pair = replace(pair, large=Pair(zeros, zeros))
    if not over.any():
        return pair
    large = merged([_sum_of(part / LARGE, axes) for part in parts_of(block, axes)])
    return _either(over, Pair(zeros, zeros, large), pair)


def _overflown(pair: Pair) -> Array:
    """Return where a sum, or on the way to it what it has lost, is not finite."""
    return ~(np.isfinite(pair.sums) & np.isfinite(pair.compensations))


def _either(over: Array, left: Pair, right: Pair) -> Pair:
    """Return the sums of one pair where something holds, elsewhere those of another."""
    arrays = zip(left.arrays(), right.arrays(), strict=True)
    return Pair.of([np.where(over, *each) for each in arrays])


def _in_large(pair: Pair) -> Pair:
    """Return what a pair is in units of ``LARGE``, less what is large already."""
    return Pair(pair.sums / LARGE, pair.compensations / LARGE)


def _sum_of(block: Array, axes: Sequence[int]) -> Pair:
    block, turned = forwards(block, axes)
    if isinstance(block, np.ndarray):
        return _on_host(block, axes).each(lambda sums: sums[turned])
    from dask_dgpu.kernels.sums.compensated.cuda import block_sum_cuda

    return block_sum_cuda(block, axes).each(lambda sums: sums[turned])


def _on_host(block: Array, axes: Sequence[int]) -> Pair:
    from dask_dgpu.kernels.sums.compensated.host import ADD

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
        pair = Pair(total, (left.compensations + right.compensations) + lost)
    if left.large is None or right.large is None:
        return pair
    large, over = _added(left.large, right.large), _overflown(pair)
    pair = replace(pair, large=large)
    if isinstance(over, np.ndarray | np.generic) and not over.any():  # a GPU is not waited for
        return pair
    larger = merged([large, _in_large(left), _in_large(right)])
    zeros = np.zeros_like(pair.sums)
    return _either(over, Pair(zeros, zeros, larger), pair)
