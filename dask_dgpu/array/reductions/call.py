"""Sums, means and extremes with checked arguments, as Dask reductions of few tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import ceil, isnan, prod
from typing import Any, Literal, cast, get_args

import dask.array as da
import numpy as np
from dask.array.core import Array
from dask.utils import typename
from numpy.lib.array_utils import normalize_axis_tuple

from dask_dgpu.arguments import (
    as_array,
    check_choice,
    check_container,
    check_flag,
    expected,
    integer,
    integers,
    suggestion,
)
from dask_dgpu.kernels.sums.conversion import narrowed
from dask_dgpu.kernels.sums.partial import Kind, added, finished, partial_sum
from graph_opt.dask_graph.parse import CARRIED
from graph_opt.model.layout import dtype_named, is_bfloat16, is_inexact

Method = Literal["compensated", "reproducible", "dask"]

DASKS_OWN: dict[Kind, Callable[..., Any]] = {"sum": da.sum, "mean": da.mean}
DTYPES = "?bBhHiIlLqQefdFD"
ALLOWED = "bools or numbers of at most double precision"
PARTIAL_BYTES = 48  # approximate size of a partial sum
TASK_BYTES = 64 << 20  # most bytes of partial sums that one task adds, if more than ``FEWEST``
FEWEST, MOST = 4, 4096  # limits of the number of partial sums that one task adds


def reduced(
    kind: Kind,
    x: Any,
    axis: int | Sequence[int] | None,
    keepdims: bool,
    dtype: Any,
    method: Method,
    split_every: Any = None,
) -> Array:
    """Return a sum or a mean by one of the methods; raise for arguments that are not allowed."""
    x, axes = reducible(x, axis, keepdims, method)
    result = result_dtype(kind, x.dtype, dtype)
    if method == "dask" or not is_inexact(result):  # integers are exact in any order
        own: Array = DASKS_OWN[kind](x, axes, result, keepdims, split_every)
        return own
    if not np.can_cast(x.dtype, result, "safe"):
        x = converted(x, result)
    ndim = x.ndim if keepdims else x.ndim - len(axes)
    total: Array = da.reduction(
        x,
        chunk=partial(partial_sum, method=method, result=result.name),
        combine=added,
        aggregate=partial(finished, kind=kind, result=result.name),
        axis=axes,
        keepdims=bool(keepdims),
        dtype=result,
        split_every=split_every or _fan_in(x, axes),
        name=f"{method}_{kind}",
        concatenate=False,
        # CuPy's empty_like ignores a shape of ()
        meta=np.empty((0,) * ndim, result, like=x._meta),
    )
    return total


def _fan_in(x: Array, axes: tuple[int, ...]) -> dict[int, int]:
    """Return how many blocks along each axis one task adds; all if they are small."""
    if not axes:
        return {}
    kept = prod(max(sizes) for axis, sizes in enumerate(x.chunks) if axis not in axes)
    most = MOST if isnan(kept) else int(TASK_BYTES // (PARTIAL_BYTES * max(kept, 1)))
    blocks = prod(x.numblocks[axis] for axis in axes)
    most = min(max(most, FEWEST), MOST)
    levels = 1
    while most**levels < blocks:
        levels += 1
    return {axis: max(2, ceil(x.numblocks[axis] ** (1 / levels))) for axis in axes}


def extreme(
    function: Callable[..., Any], x: Any, axis: int | Sequence[int] | None, keepdims: bool
) -> Array:
    """Return the largest or smallest elements, by Dask; raise for axes without elements.

    bfloat16 is compared as float32, which is quicker and does not warn about NaN.
    """
    x, axes = reducible(x, axis, keepdims)
    for each in axes:
        if x.shape[each] == 0:  # Dask's result has another shape than it declares
            raise ValueError(f"expected x with elements along axis {each}, got 0")
    if 0 in x.shape:  # the result is empty
        one = slice(0, 1) if keepdims else 0
        none: Array = x[tuple(one if k in axes else slice(None) for k in range(x.ndim))]
        return none
    x = _with_elements(x)
    wide = x.astype("float32") if is_bfloat16(x.dtype) else x
    values: Array = function(wide, axis=axes, keepdims=keepdims)
    return values if wide is x else values.astype(x.dtype)


def _with_elements(x: Array) -> Array:
    """Drop blocks without elements; Dask gives some of their results a wrong shape."""
    for axis, sizes in enumerate(x.chunks):
        kept = [i for i, size in enumerate(sizes) if size != 0]
        if 0 < len(kept) < len(sizes):
            x = x.blocks[(slice(None),) * axis + (kept,)]
    return x


def checked(name: str, x: Any, method: Method = "compensated") -> Array:
    """Return an argument as a Dask array; raise if it or the method is not allowed."""
    check_choice("method", method, get_args(Method))
    array: Array = as_array(name, x)
    if not is_number(array.dtype):
        raise TypeError(f"expected {name} to be of {ALLOWED}, got {array.dtype}")
    if method != "dask":
        check_container(name, array)
    return array


def reducible(
    x: Any, axis: Any, keepdims: bool, method: Method = "compensated"
) -> tuple[Array, tuple[int, ...]]:
    """Return a Dask array and its reduced axes in rising order; raise if any is not allowed."""
    x = checked("x", x, method)
    check_flag("keepdims", keepdims)
    if axis is None:
        return x, tuple(range(x.ndim))
    axes = integers("axis", axis) if isinstance(axis, tuple | list) else (integer("axis", axis),)
    return x, tuple(sorted(normalize_axis_tuple(axes, x.ndim, "axis")))


def is_number(dtype: np.dtype[Any]) -> bool:
    """Whether arrays of a dtype can be summed."""
    return dtype.char in DTYPES or is_bfloat16(dtype)


def converted(x: Array, dtype: np.dtype[Any]) -> Array:
    """Return an array in another dtype, with each number rounded once, even if subnormal."""
    singles = {x.dtype.name, dtype.name} == {"float32", "float64"}
    on_device = typename(type(x._meta)).startswith("cupy")
    if not (is_bfloat16(dtype) or (singles and on_device)):
        return x.astype(dtype)
    meta = x._meta.astype(dtype)
    return cast(Array, da.map_blocks(narrowed, x, dtype.name, dtype=dtype, meta=meta))


def result_dtype(kind: Kind, dtype: np.dtype[Any], wanted: Any) -> np.dtype[Any]:
    """Return the dtype that NumPy gives a sum or a mean."""
    if wanted is None:
        one = np.zeros(1, dtype)
        return (one.sum() if kind == "sum" else one.mean()).dtype
    try:
        result = dtype_named(wanted) if isinstance(wanted, str) else np.dtype(wanted)
    except (TypeError, ValueError):
        if isinstance(wanted, str):
            raise TypeError(f"unknown dtype {wanted!r}{suggestion(wanted, CARRIED)}") from None
        expected("dtype", "a dtype", wanted, TypeError)
    if not is_number(result):
        raise TypeError(f"expected dtype to be of {ALLOWED}, got {result}")
    return result
