"""Copies of many pieces of arrays at once: into and out of messages, and between blocks.

Pieces are rows of a table, not views: Python would need longer to create thousands of views than
a GPU to copy them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np

from dask_dgpu.kernels.device import Device

Array = Any
Ints = np.ndarray[Any, np.dtype[np.int64]]
Cut = tuple[Any, Any]

MOST_REMEMBERED = 4096
"""Most pieces with cached cuts on a host; cuts need more memory than tables."""


class Arrays:
    """Arrays with one number of axes and any strides, with cached addresses and strides."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self.arrays = arrays

    @cached_property
    def addresses(self) -> Ints:
        """The address of the first element of each array."""
        return np.array([_address(array) for array in self.arrays], np.int64)

    @cached_property
    def strides(self) -> Ints:
        """Bytes from one element to the next along each axis: (arrays, axes)."""
        ndim = self.arrays[0].ndim if self.arrays else 0
        strides = [array.strides for array in self.arrays]
        return np.array(strides, np.int64).reshape(len(strides), ndim)


class InArrays(NamedTuple):
    """Places of pieces in arrays: the array of each piece, and its first element there."""

    arrays: Arrays
    which: Ints
    start: Ints

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return int(self.arrays.arrays[0].itemsize)

    def cuts(self, shapes: Ints) -> list[Cut]:
        """Return the array of each piece, and its slices."""
        rows = self.which.tolist(), self.start.tolist(), shapes.tolist()
        return [
            # the ellipsis returns an array even without axes
            (which, (..., *(slice(lo, lo + n) for lo, n in zip(start, shape, strict=True))))
            for which, start, shape in zip(*rows, strict=True)
        ]

    def views(self, cuts: Sequence[Cut]) -> Iterator[Array]:
        """Yield the pieces."""
        arrays = self.arrays.arrays
        for which, slices in cuts:
            yield arrays[which][slices]

    @property
    def bases(self) -> Ints:
        """The address of the array that holds each piece."""
        return self.arrays.addresses[self.which]

    @property
    def form(self) -> Hashable:
        """The properties of the arrays that determine :meth:`offsets`."""
        return tuple(array.strides for array in self.arrays.arrays)

    def offsets(self, shapes: Ints) -> tuple[Ints, Ints]:
        """Return the offset of each piece in its array, in bytes, and its strides."""
        strides = self.arrays.strides[self.which]
        return (self.start * strides).sum(axis=1), strides


class InMessage(NamedTuple):
    """Places of pieces in a flat array: the first element of each C-contiguous piece."""

    message: Array
    start: Ints

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return int(self.message.itemsize)

    def cuts(self, shapes: Ints) -> list[Cut]:
        """Return the slice of each piece in the message, and its shape."""
        return [
            (slice(start, start + prod(shape)), shape)
            for start, shape in zip(self.start.tolist(), shapes.tolist(), strict=True)
        ]

    def views(self, cuts: Sequence[Cut]) -> Iterator[Array]:
        """Yield the pieces."""
        for part, shape in cuts:
            yield self.message[part].reshape(shape)

    @property
    def bases(self) -> Ints:
        """The address of the message, for each piece."""
        return np.full(len(self.start), _address(self.message), np.int64)

    @property
    def form(self) -> Hashable:
        """The properties of the message that determine :meth:`offsets`."""
        return self.itemsize

    def offsets(self, shapes: Ints) -> tuple[Ints, Ints]:
        """Return the offset of each piece in the message, in bytes, and its strides."""
        strides = np.full_like(shapes, self.itemsize)
        strides[:, :-1] *= np.cumprod(shapes[:, :0:-1], axis=1)[:, ::-1]
        return self.start * self.itemsize, strides


class Described:
    """Cached descriptions of pieces that are copied repeatedly.

    Their arrays change, but usually not the strides: then only the addresses are new. A GPU's
    description is ``last``; the cuts of targets and sources are a host's, cached from the second
    copy on, since those of a single copy are not worth the memory.
    """

    def __init__(self) -> None:
        self.last: tuple[Hashable, Any] | None = None
        self.cuts: tuple[list[Cut], list[Cut]] | None = None
        self.cut_before = False


class Pieces(NamedTuple):
    """Pieces to copy: their lengths (pieces, axes), and their places in arrays of one dtype.

    Targets overlap neither each other nor sources. ``described`` is a cache for repeated copies of
    the same shapes between the same places.
    """

    shapes: Ints
    target: InArrays | InMessage
    source: InArrays | InMessage
    described: Described | None = None

    def cuts(self) -> tuple[list[Cut], list[Cut]]:
        """Return the cuts of the targets and of the sources, on a host."""
        known = self.described if len(self.shapes) <= MOST_REMEMBERED else None
        if known is not None and known.cuts is not None:
            return known.cuts
        found = self.target.cuts(self.shapes), self.source.cuts(self.shapes)
        if known is not None:
            known.cuts = found if known.cut_before else None
            known.cut_before = True
        return found


def copy_pieces(device: Device, *batches: Pieces) -> None:
    """Copy pieces of arrays of one dtype, on a GPU by one launch on the current stream."""
    if device.kind == "cpu":
        copy_host(*batches)
    else:
        from dask_dgpu.kernels.pack.cuda import copy_cuda

        copy_cuda(device, *batches)


def copy_host(*batches: Pieces) -> None:
    """Copy pieces one by one."""
    for batch in batches:
        targets, sources = batch.cuts()
        pairs = zip(batch.target.views(targets), batch.source.views(sources), strict=True)
        for into, piece in pairs:
            into[...] = piece


def _address(array: Array) -> int:
    address: int = array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr
    return address
