"""Partial sums of an array by either method: computed from blocks, added, rounded at the end."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from dask_dgpu.kernels.sums import binned, compensated
from dask_dgpu.kernels.sums.binned import Binned
from dask_dgpu.kernels.sums.compensated import Pair
from dask_dgpu.kernels.sums.conversion import narrowed
from graph_opt.model.layout import dtype_named, is_bfloat16, real_of

Array = Any
Exact = Literal["compensated", "reproducible"]
Kind = Literal["sum", "mean"]


class Partial(NamedTuple):
    """The sums of a part of an array, with summed axes of length one.

    ``count`` is the number of elements in each sum, if need be as an array without axes, and
    ``container`` the type of the blocks. There are two ``parts`` for complex numbers, in a last
    axis of the sums.
    """

    sums: Pair | Binned
    count: Any
    container: str
    parts: int


def partial_sum(
    block: Array,
    axis: tuple[int, ...],
    method: Exact,
    result: str,
    keepdims: bool = True,
    computing_meta: bool = False,
) -> Partial:
    """Sum a block of real or complex numbers; the chunk function of a Dask reduction.

    ``axis`` are non-negative axes. ``result`` is the dtype of the finished sums; it decides the
    accuracy of compensated sums.

    Raises
    ------
    TypeError
        If the block has no numbers, or is a masked array.
    """
    if computing_meta:
        return cast(Partial, block)
    if isinstance(block, np.ma.MaskedArray):
        raise TypeError(f"expected an array without a mask for a {method} sum, got a masked array")
    if isinstance(block, np.generic):  # from arithmetic with arrays without axes
        block = np.asarray(block)
    if block.dtype.kind not in "biufc" and not is_bfloat16(block.dtype):
        raise TypeError(f"expected numbers for a {method} sum, got dtype {block.dtype}")
    parts = 2 if block.dtype.kind == "c" else 1
    shape = [1 if k in axis else length for k, length in enumerate(block.shape)]
    sums: Pair | Binned
    if method == "compensated":
        sums = compensated.block_sum(block, axis, real_of(dtype_named(result)).name)
    else:
        sums = binned.block_sum(block, axis)
    sums = sums.reshaped((*shape, 2) if parts == 2 else tuple(shape))
    count, kind = prod(block.shape[k] for k in axis), type(block)
    return Partial(sums, count, f"{kind.__module__}.{kind.__name__}", parts)


def added(partials: Any, axis: Any = None, keepdims: bool = True) -> Partial:
    """Add partial sums of one shape, in Dask's nested lists; compensated sums by a tree.

    The combine function. An empty list stands for partial sums that are in others already.
    """
    parts = list(_flat(partials))
    if not parts:
        return partials
    first, *others = parts
    merged: Any = compensated.merged if isinstance(first.sums, Pair) else binned.merged
    sums = merged([part.sums for part in parts]) if others else first.sums
    return first._replace(sums=sums, count=sum(part.count for part in parts))


def _flat(partials: Any) -> Iterator[Partial]:
    if isinstance(partials, Partial):
        yield partials
    else:
        for partial in partials:
            yield from _flat(partial)


def finished(
    partials: Any, kind: Kind, result: str, axis: tuple[int, ...], keepdims: bool
) -> Array:
    """Add partial sums and round them, or their means, to a dtype; the aggregate function.

    The result is a block like those summed, of NumPy a scalar if no axes remain.
    """
    whole, dtype = added(partials), dtype_named(result)
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
        values = values.squeeze(axis=axis)
    if whole.container.startswith("cupy"):
        import cupy

        return cupy.asarray(values)
    return values[()]
