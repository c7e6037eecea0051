"""Stencils of Dask arrays: weighted sums of the neighbours of each element.

Blocks exchange only ghost cells. Many iterations are one program: several sweeps follow each
exchange, transfers overlap with the inner parts of blocks, and small blocks are joined to one
tile per worker. See ``dask_dgpu/algorithms/stencil/``.

Examples
--------
>>> import dask.array as da, dask_dgpu as dgpu
>>> x = da.ones((4, 6), chunks=2)
>>> dgpu.stencil(x, boundary="zero").compute()[:2].tolist()
[[-2.0, -1.0, -1.0, -1.0, -1.0, -2.0], [-1.0, 0.0, 0.0, 0.0, 0.0, -1.0]]
>>> float(abs(dgpu.stencil(x, dgpu.LAPLACIAN_9PT, boundary="reflect")).max()) < 1e-14
True
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dask.array.core import Array

from dask_dgpu.algorithms.stencil import StencilTask
from dask_dgpu.arguments import as_array, integer
from dask_dgpu.array.stencil.arguments import boundaries, check_array, taps_of, working_dtype
from dask_dgpu.array.stencil.fallback import expand, sweeping
from dask_dgpu.kernels.stencil import LAPLACIAN_5PT, LAPLACIAN_9PT

__all__ = ["LAPLACIAN_5PT", "LAPLACIAN_9PT", "stencil"]


def stencil(
    x: Any,
    kernel: Any = LAPLACIAN_5PT,
    *,
    boundary: str | complex | Sequence[str | complex] = "zero",
    iterations: int = 1,
) -> Array:
    """Apply a stencil to an array, once or several times.

    Parameters
    ----------
    x : array_like
        A Dask array of one axis or more, in any chunks, or input of ``dask.array.asarray``.
        Blocks are NumPy or CuPy arrays.
    kernel : array_like, optional
        Weights, with the number of axes of ``x`` and odd lengths. The result is the
        correlation, as in ``scipy.ndimage.correlate``: the weight in the middle applies to
        the element itself. By default the Laplacian of 5 points, ``LAPLACIAN_5PT``;
        ``LAPLACIAN_9PT`` is that of 9.
    boundary : str, number or sequence of these, optional
        Values beyond the array, for all axes or for each of them: ``"zero"`` or another
        number, ``"periodic"``, ``"reflect"`` (mirrored, with the edge, as in
        ``scipy.ndimage``), ``"mirror"`` (without the edge) or ``"nearest"``.
    iterations : int, optional
        Number of applications, each to the result of the previous one.

    Returns
    -------
    dask.array.Array
        Of the shape and the chunks of ``x``. Its dtype is that of ``x``, float64 for
        integers and bools, and complex for complex weights. float16 is computed in float32.

    Raises
    ------
    ValueError
        If the kernel has another number of axes than ``x``, an even length, a weight that is
        not finite, or a reach beyond the length of ``x``; if a boundary is unknown, or
        complex for real numbers, ``iterations`` is negative, or chunk sizes are unknown.
    TypeError
        If ``x`` or the kernel is not of numbers, or ``iterations`` is no integer.

    See Also
    --------
    jacobi : Iterate until the residual is small.
    scipy.ndimage.correlate : One iteration on a NumPy array.

    Notes
    -----
    Zero weights are skipped: they do not propagate NaN or infinity. A worker needs memory for
    its blocks and two copies of them with ghost cells. With s sweeps per exchange it sends
    s times fewer messages, each with s times as many ghost cells ([1]_).

    References
    ----------
    .. [1] C. Ding and Y. He, "A ghost cell expansion method for reducing communications
       in solving PDE problems", Supercomputing (2001).

    Examples
    --------
    >>> import dask.array as da, dask_dgpu as dgpu
    >>> x = da.arange(6.0, chunks=2)
    >>> dgpu.stencil(x, [0.5, 0.0, 0.5], boundary="periodic").compute().tolist()
    [3.0, 1.0, 2.0, 3.0, 4.0, 2.0]
    """
    array = as_array("x", x)
    check_array("x", array)
    taps = taps_of(kernel, array.shape)
    dtype = working_dtype(array.dtype, taps.weights)
    beyond = boundaries(boundary, array.ndim, dtype)
    task = StencilTask(dtype.name, taps, beyond, integer("iterations", iterations, 0))
    result_dtype = array.dtype if array.dtype.name == "float16" and dtype.kind == "f" else dtype
    source = array.astype(dtype)
    if task.iterations and math.prod(array.shape):
        source = sweeping("stencil", (source,), source.chunks, task, expand)
    return source.astype(result_dtype)
