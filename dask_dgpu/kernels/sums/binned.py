"""Reproducible sums of a block: exact, so that the order does not matter.

Numbers are split at fixed levels without loss, as in Demmel and Nguyen, "Parallel
reproducible summation" (IEEE Trans. Comput. 64, 2015). The parts are summed exactly, into an
integer of thousands of bits (Kulisch). Only :meth:`Binned.value` rounds, once.

The integer counts multiples of ``2**LOWEST``, the smallest double. Its limb ``i`` counts
multiples of ``2**(32 * i)`` of it. The limbs of a block have 32 bits, the last a sign. So there is
room to add 2**30 blocks before carries must go on to the next limb::

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

from dask_dgpu.kernels.fused import called
from dask_dgpu.kernels.sums.conversion import as_real, in_parts, narrowed
from dask_dgpu.kernels.sums.lanes import steps_of
from graph_opt.model.layout import BFLOAT16

Array = Any

LOWEST = -1074  # the power of two of the smallest double
BITS = 32  # of a normalised limb
MASK = (1 << BITS) - 1
LIMBS = 68  # for 2**63 of the largest doubles, and a sign
INFINITE, NEGATIVE, NOT_A_NUMBER = 1, 2, 4  # flags: +inf, -inf or NaN among the numbers
FEW = 4096  # sums of a CuPy block up to which they are kept in NumPy memory: calls cost less there


@dataclass(frozen=True)
class Binned:
    """Exact sums, in NumPy memory; many sums of a CuPy block in CuPy's."""

    low: int  # number of the first limb; all lower limbs are zero
    limbs: Array  # int64, (limbs, ...): multiples of 2**(32 * (low + i) - 1074)
    special: Array  # uint8, one for each sum: flags of infinities and NaN among the numbers

    def __sizeof__(self) -> int:
        """Return the bytes of both arrays, which Dask asks for."""
        return int(self.limbs.nbytes + self.special.nbytes)

    @classmethod
    def of(cls, low: int, limbs: Array, special: Array) -> Binned:
        """Normalise and trim limbs in NumPy memory."""
        whole = np.stack(carried(*limbs)) if len(limbs) else limbs
        used = np.flatnonzero(whole.any(axis=tuple(range(1, whole.ndim)))).tolist() or [0, -1]
        return cls(low + used[0], whole[used[0] : used[-1] + 1], special)

    def reshaped(self, shape: tuple[int, ...]) -> Binned:
        """Return the same sums in another shape."""
        limbs = self.limbs.reshape(len(self.limbs), *shape)
        return Binned(self.low, limbs, self.special.reshape(shape))

    def place(self, low: int) -> slice:
        """Return which limbs these are among those from ``low`` on."""
        return slice(self.low - low, self.low - low + len(self.limbs))

    def value(self, dtype: str = "float64") -> Array:
        """Return the sums, rounded once to nearest, ties to even; a zero is positive.

        ``dtype`` is bfloat16, float16, float32 or float64.
        """
        with np.errstate(over="ignore"):
            (values,) = called(_rounded, self.special, *self.limbs, low=self.low, dtype=dtype)
            return narrowed(values, dtype) if dtype == BFLOAT16 else values


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
        kept = [n for k, n in enumerate(block.shape) if k not in axes]
        return stored(0, [], np.zeros(kept, "u1", like=block))
    return in_parts(block, axes, ("float32", "float64"), _sum_of, merged)


def _sum_of(block: Array, axes: Sequence[int]) -> Binned:
    if isinstance(block, np.ndarray):
        return _on_host(block, axes)
    from dask_dgpu.kernels.sums.binned_cuda import block_sum_cuda

    return block_sum_cuda(block, axes)


def _on_host(block: Array, axes: Sequence[int]) -> Binned:
    from dask_dgpu.kernels.sums.host import add_binned

    flat, form, shape, steps = steps_of(block, axes)
    special = np.zeros(shape, np.uint8)
    most = max(special[target].size for target, _ in steps)
    scratch = np.zeros(most * LIMBS, np.int64)
    sums = []
    for target, walks in steps:
        marks, used = special[target], np.array([LIMBS, 0])
        limbs = scratch[: marks.size * LIMBS].reshape(*marks.shape, LIMBS)
        for walk in walks:
            add_binned(flat, limbs, used, marks, *walk)
        first, end = used.tolist()
        touched = limbs[..., first:end]
        sums.append(Binned.of(first, np.moveaxis(touched, -1, 0), marks))
        touched[...] = 0
    low, high = limb_range(sums)
    limbs = np.zeros((high - low, *shape), np.int64)
    for (target, _), part in zip(steps, sums, strict=True):
        limbs[(part.place(low), *target)] = part.limbs
    return Binned(low, form.restored(limbs, 1), form.restored(special))


def limb_range(parts: Sequence[Binned]) -> tuple[int, int]:
    """Return the range of limbs that some sums use."""
    used = [part for part in parts if len(part.limbs)]
    low = min((part.low for part in used), default=0)
    return low, max((part.low + len(part.limbs) for part in used), default=low)


def merged(parts: Sequence[Binned]) -> Binned:
    """Add sums of one shape; their order does not matter."""
    low, high = limb_range(parts)
    limbs = np.zeros((high - low, *parts[0].special.shape), np.int64, like=parts[0].limbs)
    for part in parts:
        limbs[part.place(low)] += part.limbs
    return Binned(low, limbs, reduce(np.bitwise_or, [part.special for part in parts]))


def stored(low: int, limbs: Sequence[Array], special: Array) -> Binned:
    """Return sums in the memory in which they are added."""
    special = _placed(special, special.size)
    if not len(limbs):
        return Binned(0, np.zeros((0, *special.shape), np.int64, like=special), special)
    whole = _placed(np.stack(limbs), special.size)
    return (Binned.of if isinstance(whole, np.ndarray) else Binned)(low, whole, special)


def _placed(array: Array, sums: int) -> Array:
    if isinstance(array, np.ndarray | np.generic):
        return np.asarray(array)
    return array if sums > FEW else array.get()


def carried(*limbs: Array) -> list[Array]:
    """Return limbs with the same value and 32 bits each, and one more with the rest and the sign.

    Limbs may be traced; there is at least one.
    """
    digits = [limbs[0] & MASK]
    carry = limbs[0] >> BITS
    for limb in limbs[1:]:
        whole = limb + carry
        digits.append(whole & MASK)
        carry = whole >> BITS
    return [*digits, carry]


def _rounded(special: Array, *limbs: Array, low: int, dtype: str) -> list[Array]:
    """Round sums, of which ``low`` is the first limb, to a dtype.

    For bfloat16 it rounds to odd: to a double that another rounding does not mistake for a tie.
    """
    zero = special.astype(np.int64) & 0
    signed = carried(*(limbs or [zero]))
    negative = signed[-1] < 0
    whole = [zero, zero, *carried(*(np.where(negative, -limb, limb) for limb in signed))]
    one = two = three = rest = below = zero  # the highest limbs in use, and all others
    scale: Array = 1.0
    for i, here in enumerate(whole[2:]):
        used = here != 0
        one, two = np.where(used, here, one), np.where(used, whole[i + 1], two)
        three, rest = np.where(used, whole[i], three), np.where(used, below, rest)
        scale = np.where(used, np.ldexp(1.0, BITS * (low + i) + LOWEST), scale)
        below = below | whole[i]
    if dtype == "float64":
        lower = (two & 0xFFFF) << BITS | three | (rest != 0)  # both parts have 48 bits
        wide = (one << 16 | two >> 16).astype("f8") * 2.0**48 + lower.astype("f8")
        value = wide * 2.0**-64 * scale
    else:
        large = one >> 21 != 0  # both limbs have more bits than a double
        lost = np.where(large, two & 0x7FF, 0) | three | rest
        odd = np.where(large, one << 21 | two >> 11, one << BITS | two) | (lost != 0)
        value = odd.astype("f8") * np.where(large, 2.0**-21, 2.0**-BITS) * scale
    value = np.where(negative, -value, value)
    plus, minus, nan = ((special & flag) != 0 for flag in (INFINITE, NEGATIVE, NOT_A_NUMBER))
    value = np.where(plus, np.inf, np.where(minus, -np.inf, value))
    value = np.where(nan | (plus & minus), np.nan, value)
    return [value if dtype in ("float64", BFLOAT16) else value.astype(dtype)]
