"""Inner products and norms of vectors: sums of exact products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import Array

from dask_dgpu.array.reductions.call import Method, checked, converted, reduced, reducible
from dask_dgpu.kernels.sums.exact_product import count, terms
from dask_dgpu.kinds import of_either_kind
from graph_opt.model.layout import is_inexact, real_of


@of_either_kind
def dot(x: Any, y: Any, *, method: Method = "compensated") -> Array:
    """Multiply two vectors.

    Parameters
    ----------
    x, y : array_like
        Dask arrays of one axis and the same length, in any chunks, or input of
        ``dask.array.asarray``; nothing is conjugated.
    method : {"compensated", "reproducible", "dask"}, optional
        How to sum, as in :func:`sum`; ``"dask"`` uses ``dask.array.dot``. Integers and bools
        always use it; the other methods convert the result to NumPy's dtype.

    Returns
    -------
    dask.array.Array
        A scalar of NumPy's dtype.

    Raises
    ------
    ValueError
        If ``x`` or ``y`` does not have one axis, their lengths differ, or ``method`` is not
        allowed. Lengths of unknown chunks are compared during the computation.
    TypeError
        If a dtype is not of numbers, or NumPy has no common dtype.

    See Also
    --------
    sum : Accuracy of the methods.

    Notes
    -----
    Each product is the exact sum of one or two numbers [1]_. So the error bounds of
    :func:`sum` hold for exact products within the range of double precision. The result is
    rounded to double precision first.

    References
    ----------
    .. [1] T. Ogita, S. M. Rump and S. Oishi, "Accurate sum and dot product", SIAM Journal on
       Scientific Computing 26 (2005).

    Examples
    --------
    >>> import dask.array as da, dask_dgpu as dgpu
    >>> x, y = da.from_array([1e10, 1.0, -1e10]), da.from_array([1e10, 1.0, 1e10])
    >>> dgpu.dot(x, y).compute().item()
    1.0
    """
    x, y = checked("x", x, method), checked("y", y, method)
    for name, vector in (("x", x), ("y", y)):
        if vector.ndim != 1:
            raise ValueError(f"expected {name} with 1 axis, got {vector.ndim}")
    if x.shape != y.shape and not np.isnan(x.shape + y.shape).any():
        raise ValueError(f"expected x and y of the same length, got {x.shape[0]} and {y.shape[0]}")
    try:
        result = np.result_type(x.dtype, y.dtype)
    except TypeError:
        raise TypeError(
            f"expected x and y of dtypes with a common one, got {x.dtype} and {y.dtype}"
        ) from None
    if method == "dask" or not is_inexact(result):
        own: Array = da.dot(x, y)
        return own if method == "dask" else own.astype(result)
    real = real_of(result)
    x, y = (each if is_inexact(each.dtype) else converted(each, real) for each in (x, y))
    return converted(_summed(x, y, (0,), False, method), result)


@of_either_kind
def norm(
    x: Any,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    *,
    method: Method = "compensated",
) -> Array:
    """Return the 2-norm of vectors: the root of the sum of squares along some axes.

    Parameters
    ----------
    x : array_like
        A Dask array in any chunks, or input of ``dask.array.asarray``.
    axis : int or tuple of int, optional
        The axes to reduce, all by default.
    keepdims : bool, optional
        Whether these axes stay, with length one.
    method : {"compensated", "reproducible", "dask"}, optional
        How to sum, as in :func:`sum`.

    Returns
    -------
    dask.array.Array
        Real, as in NumPy: float16 and single precision stay, others, including bfloat16,
        become double precision.

    Raises
    ------
    ValueError
        If ``axis`` does not exist (``AxisError``) or is given twice, or ``method`` is not
        allowed.
    TypeError
        If the dtype is not of numbers, or ``axis`` no integer.

    See Also
    --------
    dot : Accuracy of sums of products.
    """
    x, axes = reducible(x, axis, keepdims, method)
    result = np.sqrt(np.zeros(1, x.dtype)).real.dtype if x.dtype.kind in "fc" else np.dtype("f8")
    if method == "dask":
        squares: Array = (abs(x.astype(np.result_type(x.dtype, result))) ** 2).sum(
            axis=axes, keepdims=keepdims
        )
        return da.sqrt(squares).astype(result)
    if not is_inexact(x.dtype):
        x = x.astype("f8")
    conjugate = x.conj() if x.dtype.kind == "c" else x
    squares = _summed(x, conjugate, axes, keepdims, method).real
    return converted(da.sqrt(squares), result)


def _summed(x: Array, y: Array, axes: tuple[int, ...], keepdims: bool, method: Method) -> Array:
    """Return the sums of products along some axes, in double precision."""
    dtype = np.result_type(x.dtype, y.dtype, np.float64)
    along = tuple(range(x.ndim))
    products = da.blockwise(
        terms,
        (*along, x.ndim),
        x,
        along,
        y,
        along,
        new_axes={x.ndim: count(x.dtype, y.dtype)},
        dtype=dtype,
        meta=np.empty_like(x._meta, shape=(0,) * (x.ndim + 1), dtype=dtype),
    )
    total = reduced("sum", products, (*axes, x.ndim), keepdims, None, method)
    return total[..., 0] if keepdims else total
