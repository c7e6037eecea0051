"""Arrays of zarr and HDF5, of which few chunks at a time are decoded or encoded.

zarr's setting ``async.concurrency`` says how many chunks it decodes at a time. Those of large
chunks would be larger than the block that is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import prod
from typing import Any

import numpy as np

from dask_dgpu.batches.blocks import Region
from dask_dgpu.batches.rules import Shape

DECODED = 2
"""Copies of a chunk that is decoded: as it is stored, and its elements."""
READ = 2 * DECODED + 1
"""Copies if chunks are read in turn: also what is read, and the last chunk, which is freed late."""
MANY = 1 << 30
"""Chunks that zarr decodes at a time without a limit."""
WRITTEN = 4
"""Copies of a chunk of which a part is written: with the old and the new elements."""
SHARE_WRITTEN = 1 / 16
"""Bytes of these copies, over those of the block that is written, unless one chunk has more."""


def is_zarr(array: Any) -> bool:
    """Return whether an object is an array of zarr."""
    return hasattr(array, "store_path")


def is_hdf5(array: Any) -> bool:
    """Return whether an object is a dataset of HDF5, without a call of its own properties."""
    return hasattr(type(array), "virtual_sources")


def bytes_beside(source: Any, shape: Sequence[int], dtype: np.dtype[Any]) -> int:
    """Return the bytes that a read of a part of this shape, as ``dtype``, takes beside the part."""
    nbytes = prod(shape) * dtype.itemsize
    cast = nbytes if getattr(source, "dtype", dtype) != dtype else 0  # results of passes have none
    chunk = _chunk(source)
    if chunk is None or not nbytes:
        return cast
    each = prod(chunk) * dtype.itemsize
    if not is_zarr(source):
        return DECODED * each + cast
    count = _in_turn(source, chunk, nbytes)
    return _at_once(source, chunk) + cast if count is None else READ * count * each


def read(source: Any, region: Region, dtype: np.dtype[Any]) -> Any:
    """Return a part of an array, of zarr's chunk by chunk if its chunks are large."""
    shape = tuple(part.stop - part.start for part in region)
    nbytes = prod(shape) * dtype.itemsize
    chunk = _chunk(source) if is_zarr(source) else None
    count = None if chunk is None or not nbytes else _in_turn(source, chunk, nbytes)
    if chunk is None or count is None:
        return source[region]
    pieces = list(_pieces(region, chunk, count))
    if len(pieces) == 1:
        return source[region]
    block = np.empty(shape, dtype)
    for piece in pieces:
        block[_within(region, piece)] = source[piece]
    return block


def writable(out: Any) -> Any:
    """Return an array, or for one of zarr what writes few of its chunks at a time."""
    chunk = _chunk(out) if is_zarr(out) else None
    return out if chunk is None else _Written(out, _unit(out, chunk))


@dataclass(frozen=True)
class _Written:
    """Writes to a zarr array, few chunks at a time; ``chunk`` is what zarr writes as one."""

    out: Any
    chunk: Shape

    def __getitem__(self, region: Region) -> Any:
        return read(self.out, region, self.out.dtype)

    def __setitem__(self, region: Region, block: Any) -> None:
        each = prod(self.chunk) * self.out.dtype.itemsize
        nbytes = prod(part.stop - part.start for part in region) * self.out.dtype.itemsize
        if not nbytes:
            return
        for piece in _pieces(region, self.chunk, _few(WRITTEN * each, SHARE_WRITTEN * nbytes)):
            self.out[piece] = block[_within(region, piece)]


def _chunk(array: Any) -> Shape | None:
    """Return the shape of chunks in which an array is stored, ``None`` if there is no such."""
    if not is_zarr(array) and not is_hdf5(array):
        return None
    try:
        chunk: Shape | None = array.chunks
    except NotImplementedError:  # chunks of several shapes
        return None
    return chunk


def _at_once(array: Any, chunk: Shape) -> int:
    """Return the bytes of all chunks that zarr decodes at a time, which are those of shards."""
    import zarr

    most = zarr.config.get("async.concurrency", None)
    count = MANY if most is None else int(most)
    return DECODED * count * prod(_unit(array, chunk)) * array.dtype.itemsize


def _unit(array: Any, chunk: Shape) -> Shape:
    """Return the shape of what zarr writes as one: shards, or else chunks."""
    return getattr(array, "shards", None) or chunk


def _in_turn(array: Any, chunk: Shape, nbytes: int) -> int | None:
    """Return how many chunks at a time are read in turn, ``None`` if all are read at once.

    That is if the chunks that zarr decodes at a time are no larger than the part.
    """
    if _at_once(array, chunk) <= nbytes:
        return None
    return _few(READ * prod(chunk) * array.dtype.itemsize, nbytes)


def _few(nbytes: int, room: float) -> int:
    """Return how many chunks may be in memory at a time."""
    return max(1, int(room // nbytes))


def _pieces(region: Region, chunk: Shape, together: int) -> Iterator[Region]:
    """Yield parts of a region of so many chunks, the longest along the last axes."""
    axes = []
    for part, size in zip(reversed(region), reversed(chunk), strict=True):
        first, last = part.start // size, -(-part.stop // size)
        step = min(together, last - first)
        together //= step
        inner = range((first + step) * size, part.stop, step * size)
        axes.append([slice(*each) for each in pairwise((part.start, *inner, part.stop))])
    return product(*reversed(axes))


def _within(region: Region, piece: Region) -> Region:
    """Return where a piece of a region is in it."""
    return tuple(
        slice(inner.start - outer.start, inner.stop - outer.start)
        for outer, inner in zip(region, piece, strict=True)
    )
