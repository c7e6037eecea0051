"""Variances in two passes, corrected for the rounding error of the mean."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import Array

from dask_dgpu.arguments import check_flag, real
from dask_dgpu.array.inputs import check_chunk_sizes
from dask_dgpu.array.reductions.call import (
    Method,
    checked,
    converted,
    reduced,
    result_dtype,
    summed_axes,
)
from graph_opt.model.layout import is_bfloat16, real_of


def variance(
    x: Any,
    axis: int | Sequence[int] | None,
    keepdims: bool,
    ddof: Any,
    dtype: Any,
    method: Method,
) -> Array:
    """Return the variance along some axes; raise for arguments that are not allowed."""
    x = checked("x", x, method)
    ddof = real("ddof", ddof)
    check_flag("keepdims", keepdims)
    axes = summed_axes(axis, x.ndim)
    if method != "dask":
        check_chunk_sizes("x", x, axes)
    result = real_of(result_dtype("mean", x.dtype, dtype))
    if result.kind != "f" and not is_bfloat16(result):
        raise TypeError(f"expected dtype to be real or complex, got {result}")
    if method == "dask":
        single = is_bfloat16(result)  # in which Dask fails
        wide = "float32" if single else dtype
        own: Array = da.var(x, axis=axes, keepdims=keepdims, ddof=ddof, dtype=wide)
        return converted(own, result) if single else own
    double = np.promote_types(x.dtype, "float64")
    mean = reduced("mean", x, axes, True, double, method)
    deviation = converted(x, double) - mean
    count = prod(x.shape[axis] for axis in axes)
    error = reduced("sum", deviation, axes, keepdims, None, method)
    squares = reduced("sum", _square(deviation), axes, keepdims, None, method)
    var = _divided(squares - _square(error) / max(count, 1), count - ddof)
    return converted(var, result)


def _square(x: Array) -> Array:
    """Return the squares of absolute values, without a square root."""
    return x.real**2 + x.imag**2 if x.dtype.kind == "c" else x**2


def _divided(x: Array, by: float) -> Array:
    """Divide by a positive number; others give NaN, as for one element with ``ddof=1``."""
    return x / by if by > 0 else x * np.nan
