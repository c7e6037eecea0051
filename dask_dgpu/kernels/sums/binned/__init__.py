"""Reproducible sums of a block: exact, so that the order does not matter.

Numbers are split at fixed levels without loss, as in Demmel and Nguyen, "Parallel
reproducible summation" (IEEE Trans. Comput. 64, 2015). The parts are summed exactly, into an
integer of thousands of bits (Kulisch). Only :meth:`Binned.value` rounds, once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from dask_dgpu.kernels.sums.lanes import forwards, steps_of
from dask_dgpu.kernels.sums.limbs import LIMBS, normalised, rounded, trimmed
from dask_dgpu.kernels.sums.parts import as_real, in_parts

Array = Any


@dataclass(frozen=True)
class Binned:
    """Exact sums, in NumPy memory.

    Parameters
    ----------
    low : int
        Number of the first limb; all lower limbs are zero.
    limbs : numpy.ndarray
        int64, (limbs, ...): multiples of ``2**(32 * (low + i) - 1074)``.
    special : numpy.ndarray
        uint8, one for each sum: flags of infinities and NaN among the numbers.
    """

    low: int
    limbs: Array
    special: Array

    def __sizeof__(self) -> int:
        """Return the bytes of both arrays, which Dask asks for."""
        return sys.getsizeof(self.limbs) + sys.getsizeof(self.special)

    @classmethod
    def of(cls, low: int, limbs: Array, special: Array) -> Binned:
        """Normalise and trim limbs."""
        first, used = trimmed(normalised(limbs))
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
        """Return the sums, rounded once to nearest, ties to even; a zero is positive."""
        return rounded(self.low, self.limbs, self.special, dtype)


class PendingBinned(Binned):
    """Exact sums that a device may still be computing; reading them waits.

    Parameters
    ----------
    fetch : callable
        Returns the sums.
    nbytes : int
        Their size until then.
    """

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
    """Sum a block exactly along some axes, in one pass over its memory.

    Parameters
    ----------
    block : numpy.ndarray or cupy.ndarray
        Of any real or complex dtype and any strides. Integers are summed as float64.
    axes : sequence of int
        Non-negative axes.

    Returns
    -------
    Binned
        Sums with the shape of the other axes, and a last axis for the real and imaginary part
        of complex numbers. They depend on the values alone.
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
        from dask_dgpu.kernels.sums.binned.cuda import block_sum_cuda

        sums = block_sum_cuda(block, axes)
    if all(part.step is None for part in turned):
        return sums
    return Binned(sums.low, sums.limbs[(slice(None), *turned)], sums.special[turned])


def _on_host(block: Array, axes: Sequence[int]) -> Binned:
    from dask_dgpu.kernels.sums.binned.host import ADD

    flat, form, shape, steps = steps_of(block, axes)
    special = np.zeros(shape, np.uint8)
    most = max(special[target].size for target, _ in steps)
    scratch = np.zeros(most * LIMBS, np.int64)
    found = []
    for target, walks in steps:
        marks, used = special[target], np.array([LIMBS, 0])
        limbs = scratch[: marks.size * LIMBS].reshape(*marks.shape, LIMBS)
        for walk in walks:
            ADD(flat, limbs, used, marks, *walk)
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
