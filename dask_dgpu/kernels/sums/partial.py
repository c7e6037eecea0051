"""Partial sums of an array by either method: computed from blocks, added, rounded at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal

import numpy as np

from dask_dgpu.kernels.device import ArrayContainer
from dask_dgpu.kernels.sums import binned, compensated
from dask_dgpu.kernels.sums.binned import Binned
from dask_dgpu.kernels.sums.compensated import Pair
from dask_dgpu.kernels.sums.conversion import narrowed
from graph_opt.model.layout import dtype_named, is_bfloat16, real_of

Array = Any
Exact = Literal["compensated", "reproducible"]
Kind = Literal["sum", "mean"]


@dataclass(frozen=True)
class Partial(ArrayContainer):
    """The sums of a part of an array, with summed axes of length one.

    ``count`` is the number of elements in each sum, if need be as an array without axes, and
    ``container`` the type of the blocks. There are two ``parts`` for complex numbers, in a last
    axis of the sums.
    """

    sums: Pair | Binned
    count: Any
    container: str
    parts: int

    def __sizeof__(self) -> int:
        """Return the bytes of the arrays, which Dask asks for."""
        return sys.getsizeof(self.sums)

    def map_arrays(self, function: Callable[[Array], Array]) -> Partial:
        """Return the same sums in the arrays that a function returns; exact sums have none."""
        if isinstance(self.sums, Pair):
            return replace(self, sums=self.sums.each(function))
        return self


def partial_sum(block: Array, axes: tuple[int, ...], method: Exact, result: str) -> Partial:
    """Sum a block of real or complex numbers along some non-negative axes.

    ``result`` is the dtype of the finished sums; it decides the accuracy of compensated sums.

    Raises
    ------
    TypeError
        If the block has no numbers, or is a masked array.
    """
    if isinstance(block, np.ma.MaskedArray):
        raise TypeError(f"expected an array without a mask for a {method} sum, got a masked array")
    if isinstance(block, np.generic):  # from arithmetic with arrays without axes
        block = np.asarray(block)
    if block.dtype.kind not in "biufc" and not is_bfloat16(block.dtype):
        raise TypeError(f"expected numbers for a {method} sum, got dtype {block.dtype}")
    parts = 2 if block.dtype.kind == "c" else 1
    shape = [1 if k in axes else length for k, length in enumerate(block.shape)]
    if parts == 2:
        shape.append(2)
    sums: Pair | Binned
    if method == "compensated":
        sums = compensated.block_sum(block, axes, real_of(dtype_named(result)).name)
    else:
        sums = binned.block_sum(block, axes)
    sums = sums.reshaped(tuple(shape))
    count, kind = prod(block.shape[k] for k in axes), type(block)
    return Partial(sums, count, f"{kind.__module__}.{kind.__name__}", parts)


def added(partials: Sequence[Partial]) -> Partial:
    """Add partial sums of one shape; compensated sums by a tree in their order."""
    merged: Any = compensated.merged if isinstance(partials[0].sums, Pair) else binned.merged
    sums = merged([partial.sums for partial in partials])
    return replace(partials[0], sums=sums, count=sum(partial.count for partial in partials))


def finished(
    whole: Partial, kind: Kind, result: str, axes: tuple[int, ...], keepdims: bool
) -> Array:
    """Round sums, or means, to the dtype ``result``; return a block like those summed."""
    dtype = dtype_named(result)
    real = real_of(dtype).name
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        if kind == "mean":
            values = narrowed(whole.sums.value() / whole.count, real)
        else:
            values = whole.sums.value(real)
        if whole.parts == 2:
            values = values.copy("C").view(np.dtype(f"c{2 * values.itemsize}"))[..., 0]
        values = values.astype(dtype, copy=False)
    if not keepdims:
        values = values.squeeze(axis=axes)
    if whole.container.startswith("cupy"):
        import cupy

        return cupy.asarray(values)
    return values
