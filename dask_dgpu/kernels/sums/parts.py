"""Blocks of dtypes without a kernel, converted and summed in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from dask_dgpu.kernels.sums.narrowed import widened

Array = Any
T = TypeVar("T")

PART = 1 << 18
"""Elements to convert at a time; they are still in the cache when they are summed."""

DEVICE_PART = 1 << 26
"""The same on a GPU, where launches cost more than memory."""


def as_real(block: Array) -> Array:
    """Return a view of complex numbers with a last axis for both parts; others unchanged."""
    if block.dtype.kind != "c":
        return block
    real = block.real
    shape, strides = (*real.shape, 2), (*real.strides, real.itemsize)
    if isinstance(block, np.ndarray):
        return np.lib.stride_tricks.as_strided(real, shape, strides)
    import cupy

    return cupy.lib.stride_tricks.as_strided(real, shape, strides)


def zeros_for(block: Array, axes: Sequence[int], dtype: str) -> Array:
    """Return zeros for the sums of a block along some axes, on its device."""
    shape = tuple(length for axis, length in enumerate(block.shape) if axis not in axes)
    # not zeros_like: CuPy replaces the shape () by that of the block
    return np.zeros(shape, dtype, like=block)


def in_parts(
    block: Array,
    axes: Sequence[int],
    dtypes: Sequence[str],
    function: Callable[[Array, Sequence[int]], T],
    merged: Callable[[Sequence[T]], T],
) -> T:
    """Sum a block that has one of some dtypes, or convert and sum it in small parts.

    ``function(part, axes)`` sums a part, and ``merged`` adds the sums of parts in their order. Half
    precision of both kinds becomes float32 if that is one of the dtypes, all others float64.
    """
    if block.dtype.name in dtypes:
        return function(block, axes)
    half = block.dtype.name in ("bfloat16", "float16")
    dtype = "float32" if half and "float32" in dtypes else "float64"
    return merged([function(_converted(part, dtype), axes) for part in parts_of(block, axes)])


def parts_of(block: Array, axes: Sequence[int]) -> Iterator[Array]:
    """Yield parts of a block along the longest of some axes, each small enough for a copy."""
    most = PART if isinstance(block, np.ndarray) else DEVICE_PART
    if block.size <= most or not axes:
        yield block
        return
    longest = max(axes, key=lambda axis: block.shape[axis])
    length = block.shape[longest]
    step = max(1, most // (block.size // length))
    before = (slice(None),) * longest
    for lo in range(0, length, step):
        yield block[(*before, slice(lo, lo + step))]


def _converted(block: Array, dtype: str) -> Array:
    return widened(block) if dtype == "float64" else block.astype(dtype)
