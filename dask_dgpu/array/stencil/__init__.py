"""Stencils of Dask arrays: weighted sums of what lies around each element.

Blocks exchange ghost cells, and nothing else moves. Many iterations are one program: several
sweeps follow each exchange, messages travel while the inner parts of blocks are swept, and
blocks that are small are joined to one tile a worker meanwhile. See
``dask_dgpu/algorithms/stencil/``.

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
    """Apply a stencil to an array, again and again.

    Parameters
    ----------
    x : array_like
        A Dask array of one axis or more, in any chunks, or what ``dask.array.asarray``
        takes. Blocks are NumPy or CuPy arrays.
    kernel : array_like, optional
        Weights: of as many axes as ``x``, of odd lengths. The result is the correlation
        with them, as in ``scipy.ndimage.correlate``: the weight in the middle applies to
        the element itself. By default the Laplacian of 5 points, ``LAPLACIAN_5PT``;
        ``LAPLACIAN_9PT`` is that of 9.
    boundary : str, number or sequence of these, optional
        What lies beyond the array, for all axes or for each of them: ``"zero"`` or another
        number, ``"periodic"``, ``"reflect"`` (mirrored, with the edge, as in
        ``scipy.ndimage``), ``"mirror"`` (without the edge) or ``"nearest"``.
    iterations : int, optional
        How often the stencil is applied, each time to the result of the time before.

    Returns
    -------
    dask.array.Array
        Of the shape and the chunks of ``x``. Its dtype is that of ``x``, float64 if ``x``
        has integers or booleans; complex if the weights are. float16 is computed in
        float32.

    Raises
    ------
    ValueError
        When the kernel has another number of axes than ``x``, an even length, a weight
        that is not finite, or reaches further than ``x`` is long; when a boundary is
        unknown, or complex for real numbers, ``iterations`` is negative, or chunk sizes are
        unknown.
    TypeError
        When ``x`` or the kernel are not numbers, or ``iterations`` is no integer.

    See Also
    --------
    jacobi : Iterate until the residual is small.
    scipy.ndimage.correlate : One iteration on a NumPy array.

    Notes
    -----
    Weights that are zero are left out: they do not carry NaN or infinity on. A worker
    holds its blocks and two copies of them with ghost cells; with s sweeps an exchange it
    sends s times less messages, of s times as many ghost cells each ([1]_).

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
