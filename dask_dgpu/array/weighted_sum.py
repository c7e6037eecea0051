"""Weighted sums along the last axis, and their gradients.

Both are the expressions that users would write with ``dask.array``, and cost the same.

Examples
--------
>>> import dask.array as da, dask_dgpu as dgpu
>>> dgpu.weighted_sum(da.ones((2, 3), chunks=2), [1.0, 2.0, 3.0]).compute().tolist()
[6.0, 6.0]
"""

from __future__ import annotations

from typing import Any

import dask.array as da
from dask.array.core import Array

from dask_dgpu.arguments import as_array, as_operand, check_dtype
from dask_dgpu.kinds import of_either_kind

Shape = tuple[int, ...]


@of_either_kind
def weighted_sum(x: Any, w: Any) -> Array:
    """Sum the products of elements and weights along the last axis.

    Parameters
    ----------
    x : array_like
        A Dask array of numbers with at least one axis, or input of ``dask.array.asarray``.
    w : array_like
        Weights: one for each position along the last axis, or any shape that broadcasts to that of
        ``x``.

    Returns
    -------
    dask.array.Array
        ``(x * w).sum(-1)``, without the last axis of ``x``.

    Raises
    ------
    TypeError
        If an array is not of numbers.
    ValueError
        If ``x`` has no axis, or ``w`` does not broadcast to ``x``.

    See Also
    --------
    weighted_sum_grad : Its gradients.

    Examples
    --------
    >>> import dask.array as da, dask_dgpu as dgpu
    >>> dgpu.weighted_sum(da.ones((2, 3), chunks=2), [1.0, 2.0, 3.0]).compute().tolist()
    [6.0, 6.0]
    """
    x, w = _operands(x, w)
    result: Array = (x * w).sum(axis=-1)
    return result


@of_either_kind
def weighted_sum_grad(g: Any, x: Any, w: Any) -> tuple[Array, Array]:
    """Compute the gradients of :func:`weighted_sum` for elements and weights.

    Parameters
    ----------
    g : array_like
        The gradient for the result: of the shape of ``x`` without the last axis.
    x, w : array_like
        The arguments of ``weighted_sum``.

    Returns
    -------
    for_x : dask.array.Array
        ``g[..., None] * conj(w)``, of the shape of ``x``.
    for_w : dask.array.Array
        ``g[..., None] * conj(x)``, summed to the shape of ``w``.

    Raises
    ------
    TypeError
        If an array is not of numbers.
    ValueError
        If ``g`` has another shape, ``x`` has no axis, or ``w`` does not broadcast to ``x``.

    See Also
    --------
    weighted_sum : What this differentiates.

    Notes
    -----
    Complex gradients are those of ``torch.autograd``.

    Examples
    --------
    >>> import dask.array as da, dask_dgpu as dgpu
    >>> x, w = da.ones((2, 3), chunks=2), da.array([1.0, 2.0, 3.0])
    >>> for_x, for_w = dgpu.weighted_sum_grad(da.ones(2), x, w)
    >>> for_x.compute().tolist(), for_w.compute().tolist()
    ([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]], [2.0, 2.0, 2.0])
    """
    x, w = _operands(x, w)
    g = as_array("g", g)
    check_dtype("g", g, kinds="iufc", what="numbers")
    if g.shape != x.shape[:-1]:
        raise ValueError(f"expected g of shape {x.shape[:-1]}, got {g.shape}")
    wide = g[..., None]
    products = wide * da.conj(x) if x.dtype.kind == "c" else wide * x
    for_x = wide * (da.conj(w) if w.dtype.kind == "c" else w)
    if w.ndim == 0 or w.shape[-1] != x.shape[-1]:  # one weight for the whole last axis
        for_x = da.broadcast_to(for_x, x.shape, chunks=x.chunks)
    return for_x, _sum_to(w.shape, products)


def _operands(x: Any, w: Any) -> tuple[Array, Array]:
    x = as_array("x", x)
    check_dtype("x", x, kinds="iufc", what="numbers")
    if not x.ndim:
        raise ValueError("expected x with at least 1 axis, got 0")
    return x, as_operand("w", w, x, kinds="iufc", what="numbers")


def _sum_to(shape: Shape, x: Array) -> Array:
    """Sum along the axes along which this shape broadcasts to that of an array."""
    lead = x.ndim - len(shape)
    spread = tuple(
        lead + axis for axis, n in enumerate(shape) if n == 1 and x.shape[lead + axis] != 1
    )
    summed = x.sum(axis=spread, keepdims=True) if spread else x
    return summed.sum(axis=tuple(range(lead))) if lead else summed
