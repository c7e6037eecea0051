"""What the benchmarks of transforms share: slabs, plain Dask's way, arrays of known transform."""

from __future__ import annotations

import operator
from functools import reduce
from typing import Any

import dask
import dask.array as da
import numpy as np
from harness import PLAIN, finished

# imported before dask_dgpu is enabled, which puts its own there
DASKS_FFTN = da.fft.fftn
BACKENDS = {"cuda": "cupy", "cpu": "numpy"}


def slab_rows(shape: tuple[int, ...], slabs: int) -> int:
    """Return the rows of a slab when an array is cut into so many along its first axis."""
    return -(-shape[0] // slabs)


def turned(x: da.Array, method: str | None = None) -> da.Array:
    """Rechunk slabs of rows into as many of columns: whole along axis 0, cut along axis 1.

    Parameters
    ----------
    x : dask.array.Array
        Cut along axis 0 alone.
    method : {"tasks", "p2p"}, optional
        As ``rechunk`` takes it.
    """
    columns = -(-x.shape[1] // x.numblocks[0])
    return x.rechunk((x.shape[0], columns, *x.shape[2:]), method=method)


def dasks_fftn(x: da.Array, method: str) -> da.Array:
    """Transform slabs along all axes as one would in plain Dask: transform, rechunk, transform.

    Parameters
    ----------
    x : dask.array.Array
        Cut along axis 0 alone.
    method : {"tasks", "p2p"}
        How ``rechunk`` moves blocks.

    Returns
    -------
    dask.array.Array
        In slabs of columns, as dask_dgpu leaves it too.
    """
    within = DASKS_FFTN(x, axes=tuple(range(1, x.ndim)))
    return DASKS_FFTN(turned(within, method), axes=(0,))


def outer(
    factors: list[Any], chunks: tuple[tuple[int, ...], ...], dtype: str, device: str
) -> da.Array:
    """Return the outer product of vectors on the host, an array on the workers.

    Parameters
    ----------
    factors : list of numpy.ndarray
        One an axis.
    chunks : tuple of tuple of int
        Those of the result.
    dtype : str
        Of the result.
    device : {"cuda", "cpu"}
        Where its blocks are.
    """
    ndim = len(factors)
    along = [
        da.from_array(factor.astype(dtype), chunks=(sizes,))
        .to_backend(BACKENDS[device])
        .reshape((1,) * axis + (-1,) + (1,) * (ndim - axis - 1))
        for axis, (factor, sizes) in enumerate(zip(factors, chunks, strict=True))
    ]
    with dask.config.set(array_optimize=PLAIN):
        return finished(reduce(operator.mul, along).persist())


def difference(x: da.Array, y: da.Array) -> float:
    """Return the norm of ``x - y`` over that of ``y``, by plain Dask."""
    squares = [(abs(z) ** 2).sum(dtype="float64").to_backend("numpy") for z in (x - y, y)]
    with dask.config.set(array_optimize=PLAIN):
        error, whole = (float(square.compute()) for square in squares)
    return float(np.sqrt(error / whole))
