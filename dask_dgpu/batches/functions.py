"""Functions of Dask arrays that batches call, with the dtypes of NumPy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from numbers import Number
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import Array

from dask_dgpu.array import stencil as stencils
from dask_dgpu.array.matmul import matmul
from dask_dgpu.batches.rules import contracted_axes
from graph_opt.dask_graph.internals import elemwise


def product(a: Array, b: Array, *, strategy: Any = "auto", **options: Any) -> Array:
    """Multiply as :func:`dask_dgpu.matmul`; matrices too small for a strategy have none."""
    matrices = max(a.ndim, b.ndim) <= 2
    rows, columns = (a.ndim > 1 and a.numblocks[0] > 1), (b.ndim > 1 and b.numblocks[1] > 1)
    divides = {"row": rows, "column": columns, "summa": rows and columns, "inner": a.shape[-1] > 1}
    chosen: Any = "auto" if matrices and not divides.get(strategy, True) else strategy
    return matmul(a, b, strategy=chosen, **options)


def dot(a: Array, b: Array) -> Array:
    """Return ``da.dot`` with the dtype of ``numpy.dot``: Dask's of small integers is int64."""
    return da.dot(a, b).astype(np.result_type(a, b), copy=False)


def tensordot(a: Array, b: Array, axes: Any = 2) -> Array:
    """Return ``da.tensordot`` with the dtype of ``numpy.tensordot``; raise for wrong axes."""
    first, second = contracted_axes(axes, a.ndim)
    try:
        conform = [a.shape[at] for at in first] == [b.shape[at] for at in second]
    except IndexError:
        conform = False
    if not conform:
        raise ValueError(
            "expected arrays[0] and arrays[1] of equal lengths along the contracted axes, "
            f"got shapes {a.shape} and {b.shape} with axes={axes}"
        )
    # Dask gets negative axes wrong
    axes = [at % a.ndim for at in first], [at % b.ndim for at in second]
    return da.tensordot(a, b, axes=axes).astype(np.result_type(a, b), copy=False)


def stencil(
    x: Array, kernel: Any = stencils.LAPLACIAN_5PT, *, boundary: Any = "zero", iterations: Any = 1
) -> Array:
    """Sweep as :func:`dask_dgpu.stencil`; without sweeps a batch may be shorter than the reach."""
    if iterations == 0:
        weights = np.asarray(kernel)
        kernel = np.full((1,) * x.ndim, weights.any(), weights.dtype)
    return stencils.stencil(x, kernel, boundary=boundary, iterations=iterations)


def of_ufunc(ufunc: np.ufunc) -> Callable[..., Any]:
    """Return a ufunc on Dask arrays that computes in its ``dtype``, with the casts of ``casting``.

    Dask only casts the result, knows no ``casting``, and has no clear errors for wrong dtypes.
    Elements outside ``where`` mean nothing.
    """

    @wraps(ufunc)
    def call(*args: Any, **options: Any) -> Any:
        if len(args) != ufunc.nin:  # NumPy would write to the next one
            number = f"{ufunc.nin} positional argument{'s' if ufunc.nin > 1 else ''}"
            raise TypeError(f"expected {number} of {ufunc.__name__}, got {len(args)}")
        dtype = of_nothing(ufunc, *args, **options).dtype
        if options.get("dtype") is None and not {"casting", "where"} & options.keys():
            options.pop("dtype", None)
            return ufunc(*args, **options)
        where = options.pop("where", True)
        if where is True:
            return elemwise(partial(ufunc, **options), *args, dtype=dtype)
        return elemwise(partial(_of_selected, ufunc, **options), *args, where, dtype=dtype)

    return call


def _of_selected(ufunc: np.ufunc, *blocks: Any, **options: Any) -> Any:
    """Return a ufunc of blocks where the last, a mask, is true; other elements mean nothing.

    Devices compute all elements, since CuPy's ufuncs know no ``where``.
    """
    *arrays, where = blocks
    if all(isinstance(each, np.ndarray | np.generic | Number) for each in arrays):
        return ufunc(*arrays, where=where, out=None, **options)
    found = ufunc(*arrays, **options)
    return np.broadcast_to(found, np.broadcast_shapes(found.shape, np.shape(where)))


def of_nothing(ufunc: np.ufunc, *args: Any, **options: Any) -> Any:
    """Return a ufunc of arrays of these dtypes, but without elements; raise NumPy's errors."""
    options = {"out": None} | {name: _empty(each) for name, each in options.items()}
    return ufunc(*map(_empty, args), **options)


def _empty(value: Any) -> Any:
    """Return an array without elements for one with axes; other values stay."""
    value = np.asarray(value) if isinstance(value, list | tuple) else value
    return np.empty(0, value.dtype) if np.ndim(value) or isinstance(value, Array) else value
