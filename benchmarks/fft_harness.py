"""What the benchmarks of transforms share: slabs, rechunking them, and plain Dask's transform."""

from __future__ import annotations

import dask.array as da

# imported before dask_dgpu is enabled, which puts its own there
DASKS_FFTN = da.fft.fftn


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
