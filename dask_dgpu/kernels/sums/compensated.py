"""Compensated sums of a block: the sum, and its accumulated rounding error.

Knuth's two-sum finds the rounding error of each addition of doubles exactly, and a second sum
accumulates the errors (Kahan and Babuska; Neumaier; Ogita, Rump and Oishi, "Accurate sum and
dot product", SIAM J. Sci. Comput. 26, 2005). Single and half precision are summed in double,
which is as good with less work, unless the result is a double.

A partial sum of doubles may overflow although the sum does not. Such numbers are summed apart, in
units of ``2**64``: small numbers would lose digits there. A CPU does so for sums that overflow, a
GPU for all numbers of at least ``2**900``, so that the host need not look at any sum.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dask_dgpu.kernels.sums.conversion import as_real, in_parts, narrowed, parts_of
from dask_dgpu.kernels.sums.lanes import forwards, steps_of

Array = Any

LARGE = 2.0**64
"""The unit of sums that overflow: no array has more numbers."""


@dataclass(frozen=True)
class Pair:
    """Sums as unevaluated pairs, float64 of one shape.

    If an element of ``sums`` is not finite, its compensation is meaningless.
    """

    sums: Array
    compensations: Array
    large: Pair | None = None
    """An addend in units of ``LARGE``, for sums of doubles. Infinities and NaN are only here."""

    @classmethod
    def of(cls, arrays: Sequence[Array]) -> Pair:
        """Return the pair of these :meth:`arrays`."""
        sums, compensations, *large = arrays
        return cls(sums, compensations, cls.of(large) if large else None)

    def arrays(self) -> list[Array]:
        """Return the two arrays, or all four."""
        return [self.sums, self.compensations, *(self.large.arrays() if self.large else ())]

    def __sizeof__(self) -> int:
        """Return the bytes of all arrays, which Dask asks for."""
        return sum(map(sys.getsizeof, self.arrays()))

    def each(self, function: Callable[[Array], Array]) -> Pair:
        """Apply a function to each array."""
        return Pair.of(list(map(function, self.arrays())))

    def reshaped(self, shape: tuple[int, ...]) -> Pair:
        """Return the same sums in another shape."""
        return self.each(lambda array: array.reshape(shape))

    def value(self, dtype: str = "float64") -> Array:
        """Return the sums, rounded to double and then to a dtype."""
        if not _is_on_host(self.sums):
            from dask_dgpu.kernels.sums.compensated_cuda import value_cuda

            return narrowed(value_cuda(self), dtype)
        finite = np.isfinite(self.sums)
        own = np.where(finite, self.sums + np.where(finite, self.compensations, 0.0), self.sums)
        if self.large is not None:
            whole = _added(_in_large(self), self.large).value()
            small = self.large.sums + self.large.compensations == 0
            with np.errstate(over="ignore"):
                own = np.where(small, own, whole * LARGE)
        return narrowed(own, dtype)


def block_sum(block: Array, axes: Sequence[int], result: str = "float32") -> Pair:
    """Sum a NumPy or CuPy block along some axes, in one pass over its memory.

    The block has any real or complex dtype and any strides, and is not copied; integers are summed
    as float64. ``result`` is the real dtype of the result; for float64 all blocks are summed like
    doubles. The sums have the shape of the other axes, and a last axis for the real and imaginary
    part of complex numbers; they stay on the device of the block, with ``large`` for doubles, also
    for results that are doubles.

    The order of the additions depends on shape and strides alone. As in a plain sum, infinities
    of one sign propagate, and both signs give NaN. If a partial sum of doubles overflows on a CPU,
    the block is read twice.
    """
    block = as_real(block)
    if block.size == 0:
        # not zeros_like: CuPy replaces the shape () by that of the block
        zeros = np.zeros([n for k, n in enumerate(block.shape) if k not in axes], like=block)
        doubles = block.dtype == np.float64 or result == "float64"
        return Pair(zeros, zeros, Pair(zeros, zeros) if doubles else None)
    if block.dtype == np.float64:
        return _sum_of_doubles(block, axes)
    dtypes = ("float64",) if result == "float64" else ("float32", "float64")
    pair = in_parts(block, axes, dtypes, _sum_of, merged)
    if result != "float64":
        return replace(pair, large=None)  # a GPU's, of integers: none of them is large
    return pair if pair.large is not None else _with_large(pair)


def _with_large(pair: Pair) -> Pair:
    """Return a pair with a large part that is zero."""
    zeros = np.zeros_like(pair.sums)
    return replace(pair, large=Pair(zeros, zeros))


def _is_on_host(array: Array) -> bool:
    return isinstance(array, np.ndarray | np.generic)


def _sum_of_doubles(block: Array, axes: Sequence[int]) -> Pair:
    pair = _sum_of(block, axes)
    if pair.large is not None:
        return pair
    over, pair = _overflown(pair), _with_large(pair)
    if not over.any():
        return pair
    large = merged([_sum_of(part / LARGE, axes) for part in parts_of(block, axes)])
    return _either(over, _only(large), pair)


def _only(large: Pair) -> Pair:
    """Return a pair of which all is large."""
    zeros = np.zeros_like(large.sums)
    return Pair(zeros, zeros, large)


def _overflown(pair: Pair) -> Array:
    """Return a mask of the sums, or compensations, that are not finite."""
    return ~(np.isfinite(pair.sums) & np.isfinite(pair.compensations))


def _either(over: Array, left: Pair, right: Pair) -> Pair:
    """Select sums from two pairs, like ``numpy.where``."""
    arrays = zip(left.arrays(), right.arrays(), strict=True)
    return Pair.of([np.where(over, *each) for each in arrays])


def _in_large(pair: Pair) -> Pair:
    """Return a pair, without its large part, in units of ``LARGE``."""
    return Pair(pair.sums / LARGE, pair.compensations / LARGE)


def _sum_of(block: Array, axes: Sequence[int]) -> Pair:
    block, turned = forwards(block, axes)
    if isinstance(block, np.ndarray):
        return _on_host(block, axes).each(lambda sums: sums[turned])
    from dask_dgpu.kernels.sums.compensated_cuda import block_sum_cuda

    return block_sum_cuda(block, axes).each(lambda sums: sums[turned])


def _on_host(block: Array, axes: Sequence[int]) -> Pair:
    from dask_dgpu.kernels.sums.host import ADD_COMPENSATED

    flat, form, shape, steps = steps_of(block, axes)
    add, pair = ADD_COMPENSATED[flat.dtype.name], Pair(np.zeros(shape), np.zeros(shape))
    for target, walks in steps:
        for walk in walks:
            add(flat, pair.sums[target], pair.compensations[target], *walk)
    return pair.each(form.restored)


def merged(pairs: Sequence[Pair]) -> Pair:
    """Add pairs of one shape by a tree in their order."""
    level = list(pairs)
    while len(level) > 1:
        level = [_added(*level[at : at + 2]) for at in range(0, len(level), 2)]
    return level[0]


def _added(left: Pair, right: Pair | None = None) -> Pair:
    if right is None:
        return left
    if not _is_on_host(left.sums):
        from dask_dgpu.kernels.sums.compensated_cuda import added_cuda

        return added_cuda(left, right)
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
    if not over.any():
        return pair
    larger = merged([large, _in_large(left), _in_large(right)])
    return _either(over, _only(larger), pair)
