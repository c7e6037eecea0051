"""Accurate sums and means of Dask arrays: compensated, or reproducible to the last bit.

Plain sums of floating-point numbers lose digits with their length, and their last digits
change with chunks and workers. A compensated sum adds the rounding errors too; a reproducible
one is exact and rounded once. Both read the array once, at the speed of memory. They work with
any scheduler, with dask_dgpu enabled or not, and with NumPy and CuPy blocks.

Examples
--------
>>> import dask.array as da, dask_dgpu as dgpu
>>> x = da.from_array([1.0, 1e100, 1.0, -1e100], chunks=2)
>>> x.sum().compute().item(), dgpu.sum(x).compute().item()
(0.0, 2.0)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeVar

import dask.array as da
import numpy as np
from dask.array.core import Array

from dask_dgpu.arguments import check_chunk_sizes, real
from dask_dgpu.array.reductions.call import (
    Method,
    converted,
    extreme,
    reduced,
    reducible,
    result_dtype,
)
from dask_dgpu.array.reductions.products import dot, norm
from dask_dgpu.kinds import of_either_kind
from graph_opt.model.layout import is_bfloat16, real_of

__all__ = ["Method", "dot", "max", "mean", "min", "norm", "std", "sum", "var"]

Axis = int | Sequence[int] | None
Function = TypeVar("Function", bound=Callable[..., Array])


@of_either_kind
def sum(
    x: Any,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    dtype: Any = None,
    method: Method = "compensated",
) -> Array:
    """Sum an array along some axes.

    Parameters
    ----------
    x : array_like
        A Dask array in any chunks, or input of ``dask.array.asarray``. Blocks are NumPy or
        CuPy arrays of bools, integers, real or complex numbers, including bfloat16 of the
        package ml_dtypes.
    axis : int or tuple of int, optional
        The axes to reduce, all by default.
    keepdims : bool, optional
        Whether these axes stay, with length one.
    dtype : dtype, optional
        Of the result, by default as in NumPy; it may be ``"bfloat16"``. Numbers of a wider
        dtype are converted before the sum.
    method : {"compensated", "reproducible", "dask"}, optional
        ``"compensated"`` has an error of at most ``2 * eps * abs(s) + n * eps**2 * t``, with
        the exact sum ``s`` of the ``n`` numbers and the sum ``t`` of their absolute values.
        ``"reproducible"`` is the exact sum, rounded once: the same bits for any chunks,
        order, workers and devices. ``"dask"`` uses the function of ``dask.array``. Sums of
        integers always use it; they are exact modulo the range of ``dtype``.

    Returns
    -------
    dask.array.Array
        With blocks of the type of ``x``.

    Raises
    ------
    ValueError
        If ``axis`` does not exist (``AxisError``) or is given twice, or ``method`` is not
        allowed.
    TypeError
        If ``x`` or ``dtype`` is not of numbers, or ``axis`` no integer.

    See Also
    --------
    dot : Sum of products.
    var : Variance.

    Notes
    -----
    As in NumPy, +inf or -inf propagates; both together, or any NaN, give NaN. Partial sums of
    compensated and reproducible sums cannot overflow: the result is infinite only if the exact
    sum is too large. A reproducible zero is positive.

    Examples
    --------
    >>> import dask.array as da, dask_dgpu as dgpu
    >>> x = da.ones((10**7, 2), chunks=(10**6, 2), dtype="float32") * da.float32(0.1)
    >>> dgpu.sum(x, axis=0).compute().tolist()
    [1000000.0, 1000000.0]
    """
    return reduced("sum", x, axis, keepdims, dtype, method)


def _sections_of(other: Function) -> Callable[[Function], Function]:
    """Return a decorator that appends the sections of another docstring, but no examples."""
    sections = re.split(r"\n *Examples\n", (other.__doc__ or "").partition("\n")[2])[0]

    def append(function: Function) -> Function:
        function.__doc__ = f"{(function.__doc__ or '').rstrip()}\n{sections}"
        return function

    return append


@_sections_of(sum)
@of_either_kind
def mean(
    x: Any,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    dtype: Any = None,
    method: Method = "compensated",
) -> Array:
    """Average an array along some axes: the sum, divided in double precision and rounded.

    A mean without elements is NaN. Integers become double precision before the sum.
    """
    return reduced("mean", x, axis, keepdims, dtype, method)


@of_either_kind
def max(x: Any, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return the largest elements along some axes; exact, by ``dask.array.max``.

    Parameters
    ----------
    x : array_like
        As in :func:`sum`.
    axis : int or tuple of int, optional
        The axes to reduce, all by default.
    keepdims : bool, optional
        Whether these axes stay, with length one.

    Returns
    -------
    dask.array.Array
        Of the dtype of ``x``. As in NumPy, any NaN gives NaN.

    Raises
    ------
    ValueError
        If ``axis`` does not exist (``AxisError``) or is given twice, or has no elements.
    TypeError
        If ``x`` is not of numbers, or ``axis`` no integer.
    """
    return extreme(da.max, x, axis, keepdims)


@_sections_of(max)
@of_either_kind
def min(x: Any, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return the smallest elements along some axes; exact, by ``dask.array.min``."""
    return extreme(da.min, x, axis, keepdims)


@of_either_kind
def var(
    x: Any,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    ddof: float = 0,
    dtype: Any = None,
    method: Method = "compensated",
) -> Array:
    """Return the variance along some axes, in double precision and two passes.

    Parameters
    ----------
    x : array_like
        As in :func:`sum`, with known chunk sizes along these axes.
    axis : int or tuple of int, optional
        The axes to reduce, all by default.
    keepdims : bool, optional
        Whether these axes stay, with length one.
    ddof : float, optional
        The sum of squares is divided by the number of elements minus ``ddof``.
    dtype : dtype, optional
        Of the result, by default that of the mean, or of its real part.
    method : {"compensated", "reproducible", "dask"}, optional
        How to sum, as in :func:`sum`; ``"dask"`` uses ``dask.array.var``.

    Returns
    -------
    dask.array.Array
        With blocks of the type of ``x``; NaN for ``ddof`` elements or fewer.

    Raises
    ------
    ValueError
        If ``axis`` does not exist (``AxisError``) or is given twice, ``method`` is not
        allowed, or chunk sizes are unknown and ``method`` is not ``"dask"``.
    TypeError
        If ``x`` or ``dtype`` is not of numbers, ``axis`` no integer, or ``ddof`` no number.

    See Also
    --------
    mean : The average.

    Notes
    -----
    The first pass computes the mean, the second one sums the deviations and their squares.
    The sum of deviations corrects the rounding error of the mean [1]_.

    References
    ----------
    .. [1] T. F. Chan, G. H. Golub and R. J. LeVeque, "Algorithms for computing the sample
       variance", The American Statistician 37 (1983).
    """
    x, axes = reducible(x, axis, keepdims, method)
    ddof = real("ddof", ddof)
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
    deviation = converted(x, double) - reduced("mean", x, axes, True, double, method)
    error = reduced("sum", deviation, axes, keepdims, None, method)
    squares = reduced("sum", _square(deviation), axes, keepdims, None, method)
    count = prod(x.shape[axis] for axis in axes)
    squares -= _square(error) / (count or 1)
    # NaN for too few elements, as for one with ``ddof=1``
    return converted(squares / (count - ddof) if count > ddof else squares * np.nan, result)


def _square(x: Array) -> Array:
    """Return the squares of absolute values, without a square root."""
    return x.real**2 + x.imag**2 if x.dtype.kind == "c" else x**2


@_sections_of(var)
@of_either_kind
def std(
    x: Any,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    ddof: float = 0,
    dtype: Any = None,
    method: Method = "compensated",
) -> Array:
    """Return the standard deviation along some axes, the square root of :func:`var`."""
    result: Array = da.sqrt(var(x, axis, keepdims, ddof=ddof, dtype=dtype, method=method))
    return result
