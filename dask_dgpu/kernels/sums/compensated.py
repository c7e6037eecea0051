"""Compensated sums of a block: the sum, and its accumulated rounding error.

Knuth's two-sum finds the rounding error of each addition of doubles exactly, and a second sum
accumulates the errors (Kahan and Babuska; Neumaier; Ogita, Rump and Oishi, "Accurate sum and
dot product", SIAM J. Sci. Comput. 26, 2005). Single and half precision are summed in double,
which is as good with less work, unless the result is a double.

A partial sum of doubles may overflow although the sum does not. So doubles of at least ``2**900``
are summed apart, in units of ``2**64``: small numbers would lose digits there. A GPU looks at each
number, so that the host need not look at any sum; a CPU only if a sum of a block is too large.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dask_dgpu.kernels.fused import called
from dask_dgpu.kernels.fused.device_functions import TYPES
from dask_dgpu.kernels.fused.tracer import Traced
from dask_dgpu.kernels.sums.conversion import as_real, in_parts, narrowed, parts_of
from dask_dgpu.kernels.sums.lanes import steps_of
from graph_opt.model.expression import Reduce

Array = Any

LARGE = 2.0**64
"""The unit of large numbers: no array has more numbers."""

TOO_LARGE = 2.0**900
"""Doubles from here on are summed apart."""

MOST = 2.0**960
"""Sums below this can be added without overflow."""


class Pair(NamedTuple):
    """Sums as unevaluated pairs, float64 of one shape.

    Of sums of doubles, ``large`` and ``rest`` are a second pair, of numbers that are too large, in
    units of ``LARGE``. Infinities and NaN are only there. If another sum is not finite, its
    compensation is meaningless.
    """

    sums: Array
    compensations: Array
    large: Array = None
    rest: Array = None

    def arrays(self) -> list[Array]:
        """Return the two arrays, or all four."""
        return [array for array in self if array is not None]

    def each(self, function: Callable[[Array], Array]) -> Pair:
        """Apply a function to each array."""
        return Pair(*map(function, self.arrays()))

    def reshaped(self, shape: tuple[int, ...]) -> Pair:
        """Return the same sums in another shape."""
        return self.each(lambda array: array.reshape(shape))

    def value(self, dtype: str = "float64") -> Array:
        """Return the sums, rounded to double and then to a dtype."""
        with np.errstate(invalid="ignore", over="ignore"):
            (value,) = called(_value, *self.arrays())
        return narrowed(value, dtype)


def block_sum(block: Array, axes: Sequence[int], result: str = "float32") -> Pair:
    """Sum a NumPy or CuPy block along some axes, in one pass over its memory.

    The block has any real or complex dtype and any strides, and is not copied; integers are summed
    as float64. ``result`` is the real dtype of the result; for float64 all blocks are summed like
    doubles. The sums have the shape of the other axes, and a last axis for the real and imaginary
    part of complex numbers; they stay on the device of the block, with ``large`` for doubles, also
    for results that are doubles.

    The order of the additions depends on shape and strides alone. As in a plain sum, infinities
    of one sign propagate, and both signs give NaN. If a sum of doubles is too large on a CPU, the
    block is read twice.
    """
    block = as_real(block)
    doubles = block.dtype == np.float64 or result == "float64"
    if block.size == 0:
        # not zeros_like: CuPy replaces the shape () by that of the block
        zeros = np.zeros([n for k, n in enumerate(block.shape) if k not in axes], like=block)
        return Pair(*[zeros] * (4 if doubles else 2))
    on_host = ("float64",) if doubles else ("float32",)
    known = on_host if isinstance(block, np.ndarray) else tuple(TYPES)
    pair = in_parts(block, axes, known, partial(_sum_of, doubles=doubles), merged)
    return pair if doubles else Pair(pair.sums, pair.compensations)  # no integer is too large


def _sum_of(block: Array, axes: Sequence[int], doubles: bool) -> Pair:
    if isinstance(block, np.ndarray):
        return _on_host(block, axes)
    sums = called(_compensated, block, axes=tuple(axes), doubles=doubles)
    return Pair(*(part for each in sums for part in (each.real, each.imag)))


def _on_host(block: Array, axes: Sequence[int]) -> Pair:
    pair = _walked(block, axes)
    if block.dtype.itemsize == 4:
        return pair
    if all((abs(array) < MOST).all() for array in pair.arrays()):
        zeros = np.zeros_like(pair.sums)
        return pair._replace(large=zeros, rest=zeros)
    apart = ([_walked(each, axes) for each in _apart(part)] for part in parts_of(block, axes))
    return merged([Pair(*usual.arrays(), *large.arrays()) for usual, large in apart])


def _apart(numbers: Array) -> tuple[Array, Array]:
    """Return numbers, and those of them that are too large, infinite or NaN, in their unit."""
    large = ~(abs(numbers) < TOO_LARGE)
    return np.where(large, 0, numbers), np.where(large, numbers * (1 / LARGE), 0)


def _compensated(block: Traced, axes: tuple[int, ...], doubles: bool) -> list[Traced]:
    """Return the sums of a block as complex numbers: a sum and its compensation."""
    summed = {"compensated_singles": block}
    if doubles:
        usual, large = _apart(block.astype("f8"))
        summed = {"compensated": usual, "compensated_sparse": large}
    return [
        block.trace.append(Reduce(name, numbers.node, axes), np.complex128())
        for name, numbers in summed.items()
    ]


def _walked(block: Array, axes: Sequence[int]) -> Pair:
    from dask_dgpu.kernels.sums.host import add_compensated

    flat, form, shape, steps = steps_of(block, axes)
    pair = Pair(np.zeros(shape), np.zeros(shape))
    for target, walks in steps:
        for walk in walks:
            add_compensated(flat, pair.sums[target], pair.compensations[target], *walk)
    return pair.each(form.restored)


def merged(pairs: Sequence[Pair]) -> Pair:
    """Add pairs of one shape by a tree in their order."""
    level = list(pairs)
    while len(level) > 1:
        level = [_added(*level[i : i + 2]) for i in range(0, len(level), 2)]
    return level[0]


def _added(left: Pair, right: Pair | None = None) -> Pair:
    if right is None:
        return left
    several = zip(left.arrays(), right.arrays(), strict=False)
    with np.errstate(invalid="ignore", over="ignore"):
        return Pair(*called(_two_sums, *(array for arrays in several for array in arrays)))


def _two_sums(a: Array, b: Array, lost: Array, more: Array, *large: Array) -> list[Array]:
    """Add two pairs of arrays, or both pairs of two sums."""
    total = a + b
    part = total - a
    compensation = (lost + more) + ((a - (total - part)) + (b - part))
    return [total, compensation, *(_two_sums(*large) if large else ())]


def _value(sums: Array, lost: Array, large: Array = None, rest: Array = None) -> list[Array]:
    """Round sums to double."""
    value = np.where(np.isfinite(sums), sums + lost, sums)
    if large is None:
        return [value]
    (whole,) = _value(*_two_sums(sums / LARGE, large, lost / LARGE, rest))
    return [np.where(large + rest == 0, value, whole * LARGE)]
