"""Reproducible sums of a block: exact, so that the order does not matter.

Numbers are split at fixed levels without loss, as in Demmel and Nguyen, "Parallel
reproducible summation" (IEEE Trans. Comput. 64, 2015). The parts are summed exactly, into an
integer of thousands of bits (Kulisch). Only :meth:`Binned.value` rounds, once.

The integer counts multiples of ``2**LOWEST``, the smallest double. Its limb ``i`` counts
multiples of ``2**(32 * i)`` of it. Before carries must go on to the next limb, it has room for
2**30 additions of 32 bits::

    limb      67 ...            2          1          0
    bits    sign ... |..........|..........|..........|
            2**1101         2**-1010   2**-1042   2**-1074
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from dask_dgpu.kernels.sums.conversion import as_real, in_parts, narrowed
from dask_dgpu.kernels.sums.lanes import forwards, steps_of

Array = Any

LOWEST = -1074  # the power of two of the smallest double
BITS = 32  # of a normalised limb
LIMBS = 68  # for 2**63 of the largest doubles, and a sign
INFINITE, NEGATIVE, NOT_A_NUMBER = 1, 2, 4  # flags: +inf, -inf or NaN among the numbers


@dataclass(frozen=True)
class Binned:
    """Exact sums, in NumPy memory."""

    low: int  # number of the first limb; all lower limbs are zero
    limbs: Array  # int64, (limbs, ...): multiples of 2**(32 * (low + i) - 1074)
    special: Array  # uint8, one for each sum: flags of infinities and NaN among the numbers

    def __sizeof__(self) -> int:
        """Return the bytes of both arrays, which Dask asks for."""
        return int(self.limbs.nbytes + self.special.nbytes)

    @classmethod
    def of(cls, low: int, limbs: Array, special: Array) -> Binned:
        """Normalise and trim limbs."""
        first, used = trimmed(_normalised(limbs))
        return cls(low + first, used, special)

    def reshaped(self, shape: tuple[int, ...]) -> Binned:
        """Return the same sums in another shape."""
        limbs = self.limbs.reshape(len(self.limbs), *shape)
        return Binned(self.low, limbs, self.special.reshape(shape))

    def window(self, low: int, high: int) -> Array:
        """Return the limbs from ``low`` to ``high``, which includes all in use."""
        limbs = np.zeros((high - low, *self.special.shape), np.int64)
        limbs[self.low - low : self.low - low + len(self.limbs)] = self.limbs
        return limbs

    def value(self, dtype: str = "float64") -> Array:
        """Return the sums, rounded once to nearest, ties to even; a zero is positive.

        ``dtype`` is bfloat16, float16, float32 or float64.
        """
        limbs = _normalised(self.limbs)
        negative = limbs[-1] < 0 if len(limbs) else np.zeros(self.special.shape, bool)
        mantissa, exponent = _leading(self.low, np.where(negative, -limbs, limbs))
        if dtype != "float64":  # round to odd: the conversion rounds again
            lost = mantissa & np.uint64(0x7FF)
            mantissa = (mantissa - lost) | ((lost != 0).astype(np.uint64) << np.uint64(11))
        flags = (INFINITE, NEGATIVE, NOT_A_NUMBER)
        plus, minus, nan = ((self.special & flag) != 0 for flag in flags)
        with np.errstate(over="ignore"):
            values = np.ldexp(mantissa.astype(np.float64), exponent)
            values = np.where(negative, -values, values)
            values = np.where(plus, np.inf, np.where(minus, -np.inf, values))
            return narrowed(np.where(nan | (plus & minus), np.nan, values), dtype)


class PendingBinned(Binned):
    """Exact sums of ``nbytes`` that a device may still be computing; reading them fetches them."""

    _fetch: Callable[[], Binned]
    _nbytes: int

    def __init__(self, fetch: Callable[[], Binned], nbytes: int) -> None:
        self.__dict__.update(_fetch=fetch, _nbytes=nbytes)

    def __getattr__(self, name: str) -> Any:
        if name not in ("low", "limbs", "special"):
            raise AttributeError(name)
        sums = self._fetch()  # two threads may both do so
        self.__dict__.update(vars(sums))
        return getattr(sums, name)

    def reshaped(self, shape: tuple[int, ...]) -> Binned:
        """Return the same sums in another shape."""
        return PendingBinned(lambda: Binned.reshaped(self, shape), self._nbytes)

    def __sizeof__(self) -> int:
        """Return the bytes, which Dask asks for at once."""
        return self._nbytes

    def __reduce__(self) -> Any:
        return Binned, (self.low, self.limbs, self.special)


def block_sum(block: Array, axes: Sequence[int]) -> Binned:
    """Sum a NumPy or CuPy block exactly along some axes, in one pass over its memory.

    The block has any real or complex dtype and any strides; integers are summed as float64. The
    sums have the shape of the other axes, and a last axis for both parts of complex numbers. They
    depend on the values alone.
    """
    block = as_real(block)
    if block.size == 0:
        special = np.zeros([n for k, n in enumerate(block.shape) if k not in axes], np.uint8)
        return Binned(0, np.zeros((0, *special.shape), np.int64), special)
    return in_parts(block, axes, ("float32", "float64"), _sum_of, merged)


def _sum_of(block: Array, axes: Sequence[int]) -> Binned:
    block, turned = forwards(block, axes)
    if isinstance(block, np.ndarray):
        sums = _on_host(block, axes)
    else:
        from dask_dgpu.kernels.sums.binned_cuda import block_sum_cuda

        sums = block_sum_cuda(block, axes)
    if all(part.step is None for part in turned):
        return sums
    return Binned(sums.low, sums.limbs[(slice(None), *turned)], sums.special[turned])


def _on_host(block: Array, axes: Sequence[int]) -> Binned:
    from dask_dgpu.kernels.sums.host import add_binned

    flat, form, shape, steps = steps_of(block, axes)
    special = np.zeros(shape, np.uint8)
    most = max(special[target].size for target, _ in steps)
    scratch = np.zeros(most * LIMBS, np.int64)
    found = []
    for target, walks in steps:
        marks, used = special[target], np.array([LIMBS, 0])
        limbs = scratch[: marks.size * LIMBS].reshape(*marks.shape, LIMBS)
        for walk in walks:
            add_binned(flat, limbs, used, marks, *walk)
        first, end = used.tolist()
        touched = limbs[..., first:end]
        found.append(Binned.of(first, np.moveaxis(touched, -1, 0), marks))
        touched[...] = 0
    low, high = limb_range(found)
    limbs = np.zeros((high - low, *shape), np.int64)
    for (target, _), part in zip(steps, found, strict=True):
        limbs[(slice(None), *target)] = part.window(low, high)
    return Binned(low, form.restored(limbs, 1), form.restored(special))


def limb_range(parts: Sequence[Binned]) -> tuple[int, int]:
    """Return the range of limbs that some sums use."""
    used = [part for part in parts if len(part.limbs)]
    low = min((part.low for part in used), default=0)
    return low, max((part.low + len(part.limbs) for part in used), default=low)


def merged(parts: Sequence[Binned]) -> Binned:
    """Add sums of one shape; their order does not matter."""
    low, high = limb_range(parts)
    limbs = np.zeros((high - low, *parts[0].special.shape), np.int64)
    for part in parts:
        limbs[part.low - low : part.low - low + len(part.limbs)] += part.limbs
    special = reduce(np.bitwise_or, (part.special for part in parts))
    return Binned.of(low, limbs, special)


def trimmed(limbs: Array) -> tuple[int, Array]:
    """Return the first limb in use by any sum, and the limbs from there to the last in use."""
    used = np.flatnonzero(limbs.any(axis=tuple(range(1, limbs.ndim))))
    if not len(used):
        return 0, limbs[:0]
    return int(used[0]), limbs[used[0] : used[-1] + 1]


def _normalised(limbs: Array) -> Array:
    """Return limbs with the same value and 32 bits each; the last has the sign.

    A last carry appends a limb.
    """
    limbs = limbs.copy()
    for at in range(len(limbs) - 1):
        limbs[at + 1] += limbs[at] >> BITS
        limbs[at] &= (1 << BITS) - 1
    if len(limbs) and np.any((limbs[-1] >> (BITS - 1)) + 1 >> 1):
        limbs = np.concatenate([limbs, limbs[-1:] >> BITS])
        limbs[-2] &= (1 << BITS) - 1
    return limbs


def _leading(low: int, limbs: Array) -> tuple[Array, Array]:
    """Return the upper 64 bits of positive integers, and the power of two of the last of them.

    The last bit is also set if any bit follows, so that no sum looks like a tie.
    """
    zeros = np.zeros((3, *limbs.shape[1:]), np.int64)
    limbs = np.concatenate([zeros, _normalised(limbs)])  # two limbs below the highest exist
    numbers = np.arange(len(limbs)).reshape(-1, *(1,) * (limbs.ndim - 1))
    highest = np.where(limbs != 0, numbers, 2).max(axis=0)
    below = np.where(numbers < highest - 2, limbs, 0).any(axis=0)
    one, two, three = (
        np.take_along_axis(limbs, highest[None] - back, axis=0)[0].astype(np.uint64)
        for back in range(3)
    )
    length = np.frexp(one.astype(np.float64))[1]  # bits of the highest limb
    spare = (BITS - length).astype(np.uint64)
    mantissa = ((one << np.uint64(BITS)) | two) << spare | three >> (np.uint64(BITS) - spare)
    rest = (three & ((np.uint64(1) << (np.uint64(BITS) - spare)) - np.uint64(1))) != 0
    mantissa |= (rest | below).astype(np.uint64)
    return mantissa, (highest - 3 + low - 1) * BITS + LOWEST - (BITS - length)
