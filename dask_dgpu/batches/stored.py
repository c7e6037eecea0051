"""Arrays of zarr and HDF5: what they are, and the chunks that a read decodes."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod
from typing import Any

import numpy as np

DECODED = 2
"""Copies of a chunk that is decoded: as it is stored, and its elements."""


def is_zarr(array: Any) -> bool:
    """Return whether an object is an array of zarr."""
    return hasattr(array, "store_path")


def is_hdf5(array: Any) -> bool:
    """Return whether an object is a dataset of HDF5, without a call of its own properties."""
    return hasattr(type(array), "virtual_sources")


def bytes_beside(source: Any, shape: Sequence[int], dtype: np.dtype[Any]) -> int:
    """Return the bytes that a read of a part of this shape, as ``dtype``, takes beside the part.

    zarr decodes several chunks at a time, or shards if there are any, and HDF5 one.
    """
    nbytes = prod(shape) * dtype.itemsize
    cast = nbytes if getattr(source, "dtype", dtype) != dtype else 0  # results of passes have none
    chunk = _chunk(source)
    if chunk is None or not nbytes:
        return cast
    spanned = (
        min(-(-(n - 1) // each) + 1, -(-size // each))
        for n, each, size in zip(shape, chunk, source.shape, strict=True)
    )
    count = min(_at_a_time(source), prod(spanned))
    return int(DECODED * count * prod(chunk) * dtype.itemsize) + cast


def _chunk(array: Any) -> tuple[int, ...] | None:
    """Return the shape of what is decoded as one, ``None`` if nothing is."""
    if not is_zarr(array) and not is_hdf5(array):
        return None
    try:
        found: tuple[int, ...] | None = getattr(array, "shards", None) or array.chunks
    except NotImplementedError:  # chunks of several shapes
        return None
    return found


def _at_a_time(array: Any) -> float:
    """Return how many chunks are decoded at a time."""
    if not is_zarr(array):
        return 1
    import zarr

    return float(zarr.config.get("async.concurrency", None) or inf)
