"""Exact sums along any axes by generated kernels: sums of digits of the numbers, as integers.

Usually all digits of the numbers lie in three limbs. Then they are found by adding and subtracting
constants, as in Demmel and Nguyen, in one pass. If a number has others, another kernel finds the
limbs in use, and a third takes digits from the bits of the numbers::

    limb      low + 2      low + 1        low
            |..........|..........|..........|
    number       |--- 24 or 53 bits ---|
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from dask_dgpu.kernels.fused import called
from dask_dgpu.kernels.sums.binned import (
    BITS,
    INFINITE,
    LOWEST,
    MASK,
    NEGATIVE,
    NOT_A_NUMBER,
    Binned,
    carried,
    merged,
    stored,
)

Array = Any

FLAGS = INFINITE, NEGATIVE, NOT_A_NUMBER

EXACT = 1 << 53 - BITS
"""Most numbers of a sum whose digits in a limb are summed exactly in double precision."""

PARTS = 128
"""Least parts of a longer sum: neighbours that threads read together."""

QUICK = 3
"""Limbs that are summed without a look at the numbers."""

MOST_LIMBS = 8
"""Most limbs of a kernel that takes digits from bits."""


class Format(NamedTuple):
    """How the bits of a float, as an integer, are laid out."""

    digits: int  # after the point
    lowest: int  # the power of two of the smallest number
    infinite: int  # larger integers are NaN


FORMATS = {"int32": Format(23, -149, 0xFF << 23), "int64": Format(52, LOWEST, 0x7FF << 52)}

_quick_low = {4: 31, 8: 31}
"""The first limb of quick sums, by bytes of a number: what the last misfit needed.

At first, numbers are multiples of ``2**-82`` below ``2**13``.
"""


def sum_digits(block: Array, axes: Sequence[int]) -> Binned:
    """Sum a block of float32 or float64, which is not empty, exactly along some axes."""
    axes = tuple(axes)
    if (count := prod(block.shape[axis] for axis in axes)) > EXACT:
        return _split(block, axes, max(PARTS, -(-count // EXACT)))
    low = _quick_low[block.itemsize]
    with np.errstate(all="ignore"):
        fit, *limbs = called(_quick, block, axes=axes, low=low)
    special = np.zeros(fit.shape, np.uint8, like=block)
    if not fit.all():
        low, limbs, special = _from_bits(block.view(f"i{block.itemsize}"), axes, special)
    return stored(low, limbs, special)


def _split(block: Array, axes: tuple[int, ...], parts: int) -> Binned:
    """Sum every so many of the numbers along the longest axis apart, and add these sums."""
    axis = max(axes, key=lambda axis: block.shape[axis])
    length, parts = block.shape[axis], min(1 << (parts - 1).bit_length(), block.shape[axis])
    whole, rest = np.split(block, [length // parts * parts], axis)
    whole = whole.reshape(*block.shape[:axis], -1, parts, *block.shape[axis + 1 :])
    sums = sum_digits(whole, [each + (each > axis) for each in axes])
    place = axis - sum(each < axis for each in axes)
    special = sum((sums.special & flag).max(place) for flag in FLAGS)
    limbs = carried(*sums.limbs.sum(place + 1)) if len(sums.limbs) else []
    total = stored(sums.low, limbs, special)
    return merged([total, sum_digits(rest, axes)]) if rest.size else total


def _quick(numbers: Array, axes: tuple[int, ...], low: int) -> list[Array]:
    """Return whether all numbers of a sum have their digits in ``QUICK`` limbs, and these."""
    left = numbers.astype("f8")
    units, sums = [2.0 ** (BITS * (low + i) + LOWEST) for i in range(QUICK)], []
    for unit in reversed(units):
        large = 1.5 * 2.0**52 * unit
        part = (left + large) - large
        left = left - part
        sums.append((np.sum(part, axis=axes) * (1 / unit)).astype("i8"))
    fit = (abs(numbers) < units[-1] * 2.0 ** (BITS - 1)) & (left == 0)
    return [np.all(fit, axis=axes), *carried(*sums[::-1])]


def _from_bits(
    bits: Array, axes: tuple[int, ...], special: Array
) -> tuple[int, list[Array], Array]:
    """Return the first limb, all limbs and the flags of any numbers, as integers of their bits."""
    form = FORMATS[bits.dtype.name]
    most, least, infinite = np.stack(called(_extremes, bits)).tolist()
    first, last = (max(1, each >> form.digits) - 1 + form.lowest - LOWEST for each in (least, most))
    quick = -(-(last + form.digits + 2 - BITS) // BITS) + 1 - QUICK
    _quick_low[bits.itemsize] = min(max(2, quick), 64 - QUICK)
    low, end, limbs = first // BITS, last // BITS + 3 if most else 0, list[Array]()
    for start in range(low, end, MOST_LIMBS):
        limbs += called(_digits, bits, axes=axes, low=start, count=min(MOST_LIMBS, end - start))
    if infinite:
        (special,) = called(_flags, bits, axes=axes)
    return low, [*called(carried, *limbs)] if limbs else [], special


def _extremes(bits: Array) -> list[Array]:
    """Return the largest finite number, the smallest other than 0, and whether all are finite."""
    infinite = FORMATS[bits.dtype.name].infinite
    size = _absolute(bits)
    least = np.where(size > 0, size, infinite)
    most = np.where(size < infinite, size, 0)
    return [most.max(), least.min(), np.where(size < infinite, bits & 0, bits & 0 | 1).max()]


def _absolute(bits: Array) -> Array:
    return bits & np.iinfo(bits.dtype).max


def _digits(bits: Array, axes: tuple[int, ...], low: int, count: int) -> list[Array]:
    """Return the sums of the digits in some limbs."""
    form, size = FORMATS[bits.dtype.name], _absolute(bits)
    exponent, fraction = size >> form.digits, (size & (1 << form.digits) - 1).astype("i8")
    mantissa = np.where(exponent > 0, fraction | 1 << form.digits, fraction)
    mantissa = np.where(size < form.infinite, np.where(bits < 0, -mantissa, mantissa), 0)
    place = np.maximum(exponent, 1) + (form.lowest - LOWEST - 1 - BITS * low)
    first, by = place >> 5, (place & BITS - 1).astype("i8")
    rest = mantissa >> (BITS - by)
    parts = (mantissa << by) & MASK, rest & MASK, rest >> BITS
    sums = []
    for i in range(count):
        digits: Any = 0
        for further, part in enumerate(parts):
            digits = np.where(first == i - further, part, digits)
        sums.append(np.sum(digits, axis=axes))
    return sums


def _flags(bits: Array, axes: tuple[int, ...]) -> list[Array]:
    """Return the flags of sums."""
    infinite, size = FORMATS[bits.dtype.name].infinite, _absolute(bits)
    marks = bits == infinite, (size == infinite) & (bits < 0), size > infinite
    flags = [
        np.where(np.any(mark, axis=axes), np.uint8(flag), np.uint8(0))
        for flag, mark in zip(FLAGS, marks, strict=True)
    ]
    return [flags[0] | flags[1] | flags[2]]
