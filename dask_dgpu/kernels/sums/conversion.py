"""Conversion of numbers for sums: narrowed with one rounding, widened with none, in small parts.

Libraries round twice, and CuPy flushes subnormal numbers to zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from dask_dgpu.kernels.fused import called
from graph_opt.model.layout import BFLOAT16, dtype_named

Array = Any
T = TypeVar("T")

LOST = 41
"""Bits of a double to drop before the conversion to bfloat16: 12 of 53 digits stay.

bfloat16 has 8, and two more make a second rounding harmless. Single precision represents 12
digits of all numbers from half of the smallest bfloat16, ``2**-134``, on.
"""

PART = 1 << 18  # elements to convert at a time; they are still in the cache when they are summed
DEVICE_PART = 1 << 26  # the same on a GPU, where launches cost more than memory


def narrowed(values: Array, dtype: str) -> Array:
    """Convert NumPy or CuPy numbers to a dtype; round each once, to nearest and ties to even.

    ml_dtypes converts double to bfloat16 through single precision, which rounds twice. Rounding to
    odd first makes the single precision exact ([1]_). Integers beyond 2**53 become doubles first.

    References
    ----------
    .. [1] S. Boldo and G. Melquiond, "Emulation of a FMA and correctly rounded sums: proved
       algorithms using rounding to odd", IEEE Transactions on Computers 57 (2008).
    """
    if dtype == "float64":
        return widened(values)
    if _on_device(values) and dtype == "float32":
        return called(_cast, widened(values), dtype="float32")[0]
    if dtype != BFLOAT16:
        return values.astype(dtype)
    bits = widened(values).view(np.int64)
    lost = bits & ((1 << LOST) - 1)
    odd = (bits - lost) | ((lost != 0).astype(np.int64) << LOST)
    if _on_device(values):
        (singles,) = called(_cast, odd.view(np.float64), dtype="float32")
        return called(_upper_halves, singles.view(np.uint32))[0].view(dtype_named(BFLOAT16))
    with np.errstate(over="ignore"):
        return odd.view(np.float64).astype(dtype_named(dtype))


def widened(values: Array) -> Array:
    """Return real NumPy or CuPy numbers as float64; no copy of float64."""
    if _on_device(values) and values.dtype.name in ("float32", BFLOAT16):
        return called(_cast, values.astype(np.float32, copy=False), dtype="float64")[0]
    return values.astype(np.float64, copy=False)


def _cast(values: Array, dtype: str) -> list[Array]:
    return [values.astype(dtype)]


def _upper_halves(single: Array) -> list[Array]:
    """Return the upper half of each number's bits, to nearest, ties to even.

    NaN stays NaN even if the payload in the upper bits is 0.
    """
    nan, half = (single & 0x7FFFFFFF) > 0x7F800000, single >> 16
    return [np.where(nan, half | 0x40, single + 0x7FFF + (half & 1) >> 16).astype(np.uint16)]


def _on_device(values: Array) -> bool:
    return type(values).__module__.startswith("cupy")


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
    single = "float32" in dtypes and block.dtype.name in (BFLOAT16, "float16")
    parts = parts_of(block, axes)
    return merged(
        [function(part.astype("f4") if single else widened(part), axes) for part in parts]
    )


def parts_of(block: Array, axes: Sequence[int]) -> Iterator[Array]:
    """Yield parts of a block along the longest of some axes, each small enough for a copy."""
    most = PART if isinstance(block, np.ndarray) else DEVICE_PART
    if block.size <= most or not axes:
        yield block
        return
    longest = max(axes, key=lambda axis: block.shape[axis])
    length = block.shape[longest]
    step = max(1, most // (block.size // length))
    for lo in range(0, length, step):
        yield block[(slice(None),) * longest + (slice(lo, lo + step),)]
