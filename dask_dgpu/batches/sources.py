"""Host arrays that calls read: NumPy, memory maps, zarr, HDF5, Dask arrays; and their blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import inf, isfinite, prod
from typing import Any
from uuid import uuid4

import dask.array as da
import numpy as np
from dask.array.core import Array
from dask.highlevelgraph import HighLevelGraph

from dask_dgpu.arguments import check_chunk_sizes, check_container, expected
from dask_dgpu.batches.notation import Span
from graph_opt.model.layout import cuts_of, is_bfloat16

Shape = tuple[int, ...]
Chunks = tuple[tuple[int, ...], ...]
Region = tuple[slice, ...]
Room = Callable[[Region], Any]
"""Returns the host memory for a block."""

REFUSED = (np.ma.MaskedArray, np.matrix)
"""Arrays whose parts, as plain arrays, mean something else."""
DECODED = 2
"""Copies of a chunk that is decoded: as it is stored, and its elements."""


@dataclass(frozen=True)
class Slot:
    """The place of an array operand in a call."""

    at: int


@dataclass(frozen=True)
class Operand:
    """An array argument, as a source of its parts in the machine's byte order."""

    name: str
    source: Any
    shape: Shape
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        """Shape and dtype."""
        return f"{self.shape} {self.dtype}"

    def lazy(self, chunks: Chunks) -> Array:
        """Return the array as a Dask array whose tasks read one block each.

        Each graph has names of its own: the array may change between two calls.
        """
        meta = np.empty((0,) * len(self.shape), self.dtype)
        return da.from_array(
            self, chunks, name=False, getitem=Operand.block, inline_array=True, meta=meta
        )

    def block(self, region: Region) -> Any:
        """Return a part, as :meth:`read`."""
        return self.read([(part.start, part.stop) for part in region])

    def read(self, spans: Sequence[Span]) -> Any:
        """Return a part, a NumPy array or a lazy Dask array.

        Spans that begin before an axis, or end beyond it, continue at its other end.
        """
        for axis, ((lo, hi), size) in enumerate(zip(spans, self.shape, strict=True)):
            if lo < 0 or hi > size:
                both = [(lo + size, size), (0, hi)] if lo < 0 else [(lo, size), (0, hi - size)]
                parts = [self.read([*spans[:axis], part, *spans[axis + 1 :]]) for part in both]
                join = da.concatenate if isinstance(self.source, Array) else np.concatenate
                return join(parts, axis=axis)
        part = self.source[tuple(slice(lo, hi) for lo, hi in spans)]
        if isinstance(part, np.memmap):
            part = np.array(part, self.dtype)  # read now, not when it is computed
        elif not isinstance(part, Array):
            part = np.asarray(part)
        return part if part.dtype == self.dtype else part.astype(self.dtype)

    def bytes_beside(self, shape: Sequence[int]) -> int:
        """Return the bytes that a read of a part of this shape takes beside the part.

        zarr decodes several chunks at a time, or shards if there are any, and HDF5 one.
        """
        nbytes = prod(shape) * self.dtype.itemsize
        if isinstance(self.source, Array) or not nbytes:
            return 0
        cast = nbytes if getattr(self.source, "dtype", self.dtype) != self.dtype else 0
        chunk = self._chunk()
        if chunk is None:
            return cast
        spanned = (
            min(-(-(n - 1) // each) + 1, -(-size // each))
            for n, each, size in zip(shape, chunk, self.shape, strict=True)
        )
        at_a_time = 1.0
        if is_zarr(self.source):
            import zarr

            at_a_time = zarr.config.get("async.concurrency", None) or inf
        count = min(at_a_time, prod(spanned))
        return int(DECODED * count * prod(chunk) * self.dtype.itemsize) + cast

    def _chunk(self) -> tuple[int, ...] | None:
        """Return the shape of what is decoded as one, ``None`` if nothing is."""
        if not is_zarr(self.source) and not is_hdf5(self.source):
            return None
        try:
            shards: tuple[int, ...] | None = getattr(self.source, "shards", None)
            return shards or self.source.chunks
        except NotImplementedError:  # chunks of several shapes
            return None


def is_zarr(array: Any) -> bool:
    """Return whether an object is an array of zarr."""
    return hasattr(array, "store_path")


def is_hdf5(array: Any) -> bool:
    """Return whether an object is a dataset of HDF5, without a call of its own properties."""
    return hasattr(type(array), "virtual_sources")


def is_operand(value: Any) -> bool:
    """Whether an argument is an array with axes."""
    shape = getattr(value, "shape", None)
    return isinstance(shape, tuple) and len(shape) > 0 and hasattr(value, "dtype")


def numbers(name: str, dtype: Any) -> np.dtype[Any]:
    """Return the dtype of an argument; raise unless it is one of numbers or dates."""
    try:
        array_dtype = np.dtype(dtype)
    except TypeError:
        array_dtype = None
    if array_dtype is None or (array_dtype.kind not in "biufcmM" and not is_bfloat16(array_dtype)):
        raise TypeError(f"expected {name} to be of numbers, got {dtype}")
    return array_dtype


def operand(name: str, value: Any) -> Operand | None:
    """Return an array with axes, ``None`` for other arguments; raise if parts would change it."""
    if not is_operand(value):
        return None
    if isinstance(value, REFUSED) or hasattr(value, "__cuda_array_interface__"):
        expected(name, "a NumPy, zarr, HDF5 or Dask array", value, TypeError)
    dtype = numbers(name, value.dtype)
    if isinstance(value, Array):
        check_chunk_sizes(name, value)
        check_container(name, value)
    shape = tuple(int(size) for size in value.shape)
    return Operand(name, value, shape, dtype.newbyteorder("="))


def array_of(
    blocks: Mapping[tuple[int, ...], Any],
    chunks: Chunks,
    dtype: np.dtype[Any],
    name: str | None = None,
    module: Any = np,
) -> Array:
    """Return a Dask array of blocks by index, without copies, under a name or a new one.

    ``module`` is NumPy or CuPy, whichever the blocks are of.
    """
    name = f"operand-{uuid4().hex}" if name is None else name
    tasks: dict[Any, Any] = {(name, *index): block for index, block in blocks.items()}
    graph = HighLevelGraph.from_collections(name, tasks, dependencies=())
    return Array(graph, name, chunks, meta=module.empty((0,) * len(chunks), dtype))


def regions(chunks: Chunks) -> Iterator[tuple[tuple[int, ...], Region]]:
    """Yield index and place of each block."""
    spans = [[slice(*span) for span in pairwise(cuts_of(sizes))] for sizes in chunks]
    for place in product(*(list(enumerate(span)) for span in spans)):
        yield tuple(at for at, _ in place), tuple(region for _, region in place)


def largest_nbytes(chunks: Chunks, itemsize: int) -> int:
    """Return the bytes of the largest block, 0 if nobody knows."""
    size = prod(max(sizes, default=0) for sizes in chunks)
    return int(size) * itemsize if isfinite(size) else 0


def on_host(block: Any) -> Any:
    """Return a block as a NumPy array or scalar."""
    return block.get() if hasattr(block, "__cuda_array_interface__") else block
