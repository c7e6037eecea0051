"""Sums and products of blocks within Dask's tasks, in the memory of a block that is spare.

The last step of a running sum adds a total to each block, for instance.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dask_dgpu.runtime.spare import Spare
from graph_opt.dask_graph.internals import _cumprod_merge, _cumsum_merge

Array = Any

UFUNCS: dict[Any, np.ufunc] = {
    operator.add: np.add,
    operator.sub: np.subtract,
    operator.mul: np.multiply,
    operator.truediv: np.divide,
    _cumsum_merge: np.add,
    _cumprod_merge: np.multiply,
}
"""Functions of two blocks that are these ufuncs for arrays of NumPy."""


def in_place(function: Callable[..., Array]) -> Callable[..., Array]:
    """Return a function that takes spare blocks if it is known to be a ufunc, else itself."""
    try:
        ufunc = UFUNCS.get(function)
    except TypeError:  # it has no hash
        return function
    return function if ufunc is None else InPlace(function, ufunc)


@dataclass(frozen=True)
class InPlace:
    """A function of two blocks: a result that fits is written over a spare one."""

    function: Callable[..., Array]
    ufunc: np.ufunc
    overwrites: ClassVar[bool] = True

    def __call__(self, *given: Any) -> Array:
        """Return the result for blocks, of which some may be spare."""
        blocks = [each.block if isinstance(each, Spare) else each for each in given]
        for each in given:
            if isinstance(each, Spare) and _fits(self.ufunc, blocks, each.block):
                return self.ufunc(*blocks, out=each.block)
        return self.function(*blocks)


def _fits(ufunc: np.ufunc, blocks: Sequence[Any], memory: Array) -> bool:
    """Whether the result of a ufunc has the dtype and the shape of an array of NumPy."""
    if memory.ndim == 0 or memory.dtype.hasobject:
        return False
    if any(type(each) is not np.ndarray for each in blocks):
        return False
    try:
        shape = np.broadcast_shapes(*(each.shape for each in blocks))
        found = ufunc.resolve_dtypes((*(each.dtype for each in blocks), None))[-1]
    except (TypeError, ValueError):  # the function itself says what is wrong
        return False
    return bool(shape == memory.shape and found == memory.dtype)
