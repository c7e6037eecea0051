"""Sums and means of Dask arrays that can be trusted: compensated, or the same bits always.

Plain sums of floating-point numbers lose digits with their length, most along strided axes,
and their last digits change with chunks and workers. A compensated sum keeps what rounding
takes away; a reproducible one is exact until its only rounding. Both read the array once, at
the speed of memory. They work with any scheduler, with dask_dgpu enabled or not, and with
NumPy and CuPy blocks.

Examples
--------
>>> import dask.array as da, dask_dgpu as dgpu
>>> x = da.from_array([1.0, 1e100, 1.0, -1e100], chunks=2)
>>> x.sum().compute().item(), dgpu.sum(x).compute().item()
(0.0, 2.0)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dask.array as da
from dask.array.core import Array

from dask_dgpu.array.reductions.call import Method, extreme, reduced
from dask_dgpu.array.reductions.products import dot, norm
from dask_dgpu.array.reductions.spread import variance

__all__ = ["Method", "dot", "max", "mean", "min", "norm", "std", "sum", "var"]

Axis = int | Sequence[int] | None


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
        A Dask array in any chunks, or what ``dask.array.asarray`` takes. Blocks are NumPy
        or CuPy arrays of bool, integer, real or complex numbers; bfloat16 of the package
        ml_dtypes is real.
    axis : int or tuple of int, optional
        The axes to sum along, all by default.
    keepdims : bool, optional
        Whether summed axes stay, with length one.
    dtype : dtype, optional
        Of the result, as in NumPy, which also gives the default. Numbers that it cannot
        hold are converted before they are summed. It may be ``"bfloat16"`` too.
    method : {"compensated", "reproducible", "dask"}, optional
        ``"compensated"`` has an error of at most ``2 * eps * abs(s) + n * eps**2 * t``, where
        ``s`` is the exact sum of the ``n`` numbers and ``t`` that of their absolute values.
        ``"reproducible"`` is the exact sum, rounded once: the same bits for any chunks,
        order, workers and devices. ``"dask"`` is ``dask.array.sum``. Integers are summed by
        the last always, which is exact modulo the range of ``dtype``.

    Returns
    -------
    dask.array.Array
        With blocks of the type that ``x`` has.

    Raises
    ------
    ValueError
        When ``axis`` does not exist (``AxisError``) or is given twice, or ``method`` is not
        allowed.
    TypeError
        When ``x`` or ``dtype`` is of another kind, as object, or ``axis`` no integer.

    See Also
    --------
    mean : The same, divided by the number of elements.

    Notes
    -----
    An infinity gives an infinity, and both infinities NaN, as in NumPy. Compensated and
    reproducible sums are infinite otherwise only if their value is beyond the largest number,
    whatever happens on the way. A reproducible zero is positive.

    Examples
    --------
    >>> import dask.array as da, dask_dgpu as dgpu
    >>> x = da.ones((10**7, 2), chunks=(10**6, 2), dtype="float32") * da.float32(0.1)
    >>> dgpu.sum(x, axis=0).compute().tolist()
    [1000000.0, 1000000.0]
    """
    return reduced("sum", x, axis, keepdims, dtype, method)


def mean(
    x: Any,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    dtype: Any = None,
    method: Method = "compensated",
) -> Array:
    """Average an array along some axes.

    Parameters
    ----------
    x : array_like
        As in :func:`sum`.
    axis : int or tuple of int, optional
        The axes to average along, all by default.
    keepdims : bool, optional
        Whether these axes stay, with length one.
    dtype : dtype, optional
        Of the result, as in NumPy, which also gives the default: float64 for integers.
    method : {"compensated", "reproducible", "dask"}, optional
        How to sum, as in :func:`sum`. The sum is divided in double precision, and rounded to
        ``dtype``; integers are converted to double precision first.

    Returns
    -------
    dask.array.Array
        With blocks of the type that ``x`` has; NaN where there are no elements.

    Raises
    ------
    ValueError
        When ``axis`` does not exist (``AxisError``) or is given twice, or ``method`` is not
        allowed.
    TypeError
        When ``x`` or ``dtype`` is of another kind, as object, or ``axis`` no integer.

    See Also
    --------
    sum : What is guaranteed of sums.
    """
    return reduced("mean", x, axis, keepdims, dtype, method)


def max(x: Any, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return the largest elements along some axes; exact, by ``dask.array.max``.

    Parameters
    ----------
    x : array_like
        As in :func:`sum`.
    axis : int or tuple of int, optional
        The axes to look along, all by default.
    keepdims : bool, optional
        Whether these axes stay, with length one.

    Returns
    -------
    dask.array.Array
        Of the dtype of ``x``; NaN where there is one, as in NumPy.

    Raises
    ------
    ValueError
        When ``axis`` does not exist (``AxisError``) or is given twice, or has no elements.
    TypeError
        When ``x`` is of another kind, as object, or ``axis`` no integer.
    """
    return extreme(da.max, x, axis, keepdims)


def min(x: Any, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return the smallest elements along some axes; exact, by ``dask.array.min``.

    Parameters
    ----------
    x : array_like
        As in :func:`sum`.
    axis : int or tuple of int, optional
        The axes to look along, all by default.
    keepdims : bool, optional
        Whether these axes stay, with length one.

    Returns
    -------
    dask.array.Array
        Of the dtype of ``x``; NaN where there is one, as in NumPy.

    Raises
    ------
    ValueError
        When ``axis`` does not exist (``AxisError``) or is given twice, or has no elements.
    TypeError
        When ``x`` is of another kind, as object, or ``axis`` no integer.
    """
    return extreme(da.min, x, axis, keepdims)


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
        As in :func:`sum`, in chunks of known sizes along these axes.
    axis : int or tuple of int, optional
        The axes to look along, all by default.
    keepdims : bool, optional
        Whether these axes stay, with length one.
    ddof : float, optional
        What is taken off the number of elements before it divides.
    dtype : dtype, optional
        Of the result, by default that of the mean, or of its real part.
    method : {"compensated", "reproducible", "dask"}, optional
        How to sum, as in :func:`sum`; ``"dask"`` is ``dask.array.var``.

    Returns
    -------
    dask.array.Array
        With blocks of the type that ``x`` has; NaN where there are no more than ``ddof``
        elements.

    Raises
    ------
    ValueError
        When ``axis`` does not exist (``AxisError``) or is given twice, ``method`` is not
        allowed, or chunk sizes are unknown and ``method`` is not ``"dask"``.
    TypeError
        When ``x`` or ``dtype`` is of another kind, as object, ``axis`` no integer, or ``ddof``
        no number.

    See Also
    --------
    std : Its square root.

    Notes
    -----
    First the mean is found, then the sums of deviations and of their squares; the former,
    which the rounding of the mean leaves, corrects the latter [1]_.

    References
    ----------
    .. [1] T. F. Chan, G. H. Golub and R. J. LeVeque, "Algorithms for computing the sample
       variance", The American Statistician 37 (1983).
    """
    return variance(x, axis, keepdims, ddof, dtype, method)


def std(
    x: Any,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    ddof: float = 0,
    dtype: Any = None,
    method: Method = "compensated",
) -> Array:
    """Return the standard deviation along some axes, the square root of :func:`var`.

    Parameters
    ----------
    x : array_like
        As in :func:`sum`, in chunks of known sizes along these axes.
    axis : int or tuple of int, optional
        The axes to look along, all by default.
    keepdims : bool, optional
        Whether these axes stay, with length one.
    ddof : float, optional
        What is taken off the number of elements before it divides.
    dtype : dtype, optional
        Of the result, by default that of the mean, or of its real part.
    method : {"compensated", "reproducible", "dask"}, optional
        How to sum, as in :func:`sum`.

    Returns
    -------
    dask.array.Array
        With blocks of the type that ``x`` has; NaN where there are no more than ``ddof``
        elements.

    Raises
    ------
    ValueError
        As :func:`var`.
    TypeError
        As :func:`var`.
    """
    result: Array = da.sqrt(variance(x, axis, keepdims, ddof, dtype, method))
    return result
