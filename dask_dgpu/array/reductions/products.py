"""Inner products and norms of vectors: sums of products that are exact before they are added."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import Array

from dask_dgpu.arguments import check_flag
from dask_dgpu.array.reductions.call import Method, checked, converted, reduced, summed_axes
from dask_dgpu.kernels.sums.exact_product import count, terms
from graph_opt.model.dtype import is_inexact, real_of


def dot(x: Any, y: Any, *, method: Method = "compensated") -> Array:
    """Multiply two vectors.

    Parameters
    ----------
    x, y : array_like
        Dask arrays of one dimension and of one length, in any chunks, or what
        ``dask.array.asarray`` takes; nothing is conjugated.
    method : {"compensated", "reproducible", "dask"}, optional
        How to sum, as in :func:`sum`; ``"dask"`` is ``dask.array.dot``. Integers and bools are
        summed by it always, and the others convert its result to the dtype of NumPy's.

    Returns
    -------
    dask.array.Array
        A scalar of the dtype that NumPy gives it.

    Raises
    ------
    ValueError
        When ``x`` or ``y`` has not one dimension, their lengths differ, or ``method`` is not
        allowed. Lengths of unknown chunks are compared when they are multiplied.
    TypeError
        When a dtype is of another kind, as object, or NumPy has none that holds both.

    See Also
    --------
    sum : What is guaranteed of sums.

    Notes
    -----
    Each product is the exact sum of one or two numbers [1]_, so what is guaranteed of
    :func:`sum` holds for the products as if they were never rounded, unless one is
    beyond the range of double precision. The result is rounded to double precision first.

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
        A Dask array in any chunks, or what ``dask.array.asarray`` takes.
    axis : int or tuple of int, optional
        The axes to sum along, all by default.
    keepdims : bool, optional
        Whether these axes stay, with length one.
    method : {"compensated", "reproducible", "dask"}, optional
        How to sum, as in :func:`sum`.

    Returns
    -------
    dask.array.Array
        Real, as in NumPy: of single precision for that, float16 for that, else of double
        precision, for bfloat16 too.

    Raises
    ------
    ValueError
        When ``axis`` does not exist (``AxisError``) or is given twice, or ``method`` is not
        allowed.
    TypeError
        When the dtype is of another kind, as object, or ``axis`` no integer.

    See Also
    --------
    dot : How products are summed.
    """
    x = checked("x", x, method)
    check_flag("keepdims", keepdims)
    axes = summed_axes(axis, x.ndim)
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
