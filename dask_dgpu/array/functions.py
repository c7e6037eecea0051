"""Functions of neural networks on Dask arrays: GELU, softmax, layer norm.

Each is the expression that users would write with ``dask.array``, and costs the same.

Examples
--------
>>> import dask.array as da, dask_dgpu as dgpu
>>> x = da.zeros((4, 5), chunks=2)
>>> dgpu.softmax(x).compute()[0].tolist()
[0.2, 0.2, 0.2, 0.2, 0.2]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import Array

from dask_dgpu.arguments import as_array, as_operand, check_dtype, expected, integer, integers, real
from dask_dgpu.kinds import of_either_kind


@of_either_kind
def gelu(x: Any) -> Array:
    """Compute the Gaussian error linear unit, in its form with tanh.

    Parameters
    ----------
    x : array_like
        A Dask array of real numbers in any chunks, or input of ``dask.array.asarray``.

    Returns
    -------
    dask.array.Array
        ``0.5 x (1 + tanh(0.79788456 (x + 0.044715 x**3)))``, of the dtype of ``x`` if that is
        floating-point, else float64.

    Raises
    ------
    TypeError
        If ``x`` is not of real numbers.

    Notes
    -----
    float16 is computed in float32 and rounded once.

    Examples
    --------
    >>> import dask.array as da, dask_dgpu as dgpu
    >>> dgpu.gelu(da.arange(3.0, chunks=2)).compute().round(4).tolist()
    [0.0, 0.8412, 1.9546]
    """
    x, dtype = _real("x", x)
    result: Array = 0.5 * x * (1 + da.tanh(0.79788456 * (x + 0.044715 * x * x * x)))
    return _as(dtype, result)


@of_either_kind
def softmax(x: Any, axis: int = -1) -> Array:
    """Divide exponentials by their sum along an axis.

    Parameters
    ----------
    x : array_like
        A Dask array of real numbers in any chunks, or input of ``dask.array.asarray``.
    axis : int, optional
        The axis along which results add up to 1.

    Returns
    -------
    dask.array.Array
        Of the shape and chunks of ``x``, and its dtype if that is floating-point, else float64.

    Raises
    ------
    TypeError
        If ``x`` is not of real numbers, or ``axis`` is no integer.
    ValueError
        If ``x`` has no such axis.

    Notes
    -----
    The largest element of each row is subtracted first, so nothing overflows. float16 is computed
    in float32 and rounded once.

    Examples
    --------
    >>> import dask.array as da, dask_dgpu as dgpu
    >>> dgpu.softmax(da.array([[0.0, 1000.0]])).compute().tolist()
    [[0.0, 1.0]]
    """
    x, dtype = _real("x", x)
    (along,) = _axes(x, integer("axis", axis))
    powers = da.exp(x - x.max(axis=along, keepdims=True))
    return _as(dtype, powers / powers.sum(axis=along, keepdims=True))


@of_either_kind
def layer_norm(
    x: Any,
    axis: int | Sequence[int] = -1,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> Array:
    """Shift and scale an array to mean 0 and variance 1 along some axes.

    Parameters
    ----------
    x : array_like
        A Dask array of real numbers in any chunks, or input of ``dask.array.asarray``.
    axis : int or sequence of int, optional
        The axes along which mean and variance are computed.
    weight, bias : array_like, optional
        What the result is multiplied by, and what is then added. Both broadcast to ``x``: for the
        last axis they have its length.
    eps : float, optional
        Added to variances, at least 0.

    Returns
    -------
    dask.array.Array
        ``(x - mean) / sqrt(var + eps) * weight + bias``, of the shape and chunks of ``x``, and its
        dtype if that is floating-point, else float64.

    Raises
    ------
    TypeError
        If an array is not of real numbers, or ``axis`` or ``eps`` is of another type.
    ValueError
        If ``x`` has no such axis, ``weight`` or ``bias`` does not broadcast to ``x``, or ``eps`` is
        negative.

    Notes
    -----
    The variance is the mean of the squares of ``x - mean``. float16 is computed in float32 and
    rounded once.

    Examples
    --------
    >>> import dask.array as da, dask_dgpu as dgpu
    >>> dgpu.layer_norm(da.array([[1.0, 2.0, 3.0]]), eps=0).compute().round(4).tolist()
    [[-1.2247, 0.0, 1.2247]]
    """
    x, dtype = _real("x", x)
    axes = _axes(x, axis)
    added = real("eps", eps)
    if added < 0:
        expected("eps", "at least 0", eps)
    change = x - x.mean(axis=axes, keepdims=True)
    variance = (change * change).mean(axis=axes, keepdims=True)
    result = change / da.sqrt(variance + added)
    if weight is not None:
        result = result * as_operand("weight", weight, x)
    if bias is not None:
        result = result + as_operand("bias", bias, x)
    return _as(dtype, result)


def _real(name: str, x: Any) -> tuple[Array, np.dtype[Any]]:
    """Return an array of floating-point numbers, and the dtype of results from it."""
    x = as_array(name, x)
    check_dtype(name, x, kinds="biuf", what="real numbers")
    dtype = x.dtype if x.dtype.kind == "f" else np.dtype("float64")
    return x.astype("float32" if dtype == np.float16 else dtype), dtype


def _as(dtype: np.dtype[Any], result: Array) -> Array:
    """Return a result in a dtype, whatever dtype weights have added."""
    return result if result.dtype == dtype else result.astype(dtype)


def _axes(x: Array, axis: int | Sequence[int]) -> tuple[int, ...]:
    """Return axes as numbers from 0."""
    axes = (axis,) if isinstance(axis, int | np.integer) else axis
    given = integers("axis", axes)
    for each in given:
        if not -x.ndim <= each < x.ndim:
            raise ValueError(f"expected axis of an array with {x.ndim} axes, got {each}")
    return tuple(sorted({each % x.ndim for each in given}))
