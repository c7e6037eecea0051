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

    def views(self, shapes: Ints) -> Iterator[Array]:
        """Yield the pieces."""
        arrays, rows = self.arrays.arrays, (self.which.tolist(), self.start.tolist())
        for which, start, shape in zip(*rows, shapes.tolist(), strict=True):
            slices = (slice(lo, lo + n) for lo, n in zip(start, shape, strict=True))
            yield arrays[which][(..., *slices)]  # the ellipsis: an array even without axes

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

    def views(self, shapes: Ints) -> Iterator[Array]:
        """Yield the pieces."""
        for start, shape in zip(self.start.tolist(), shapes.tolist(), strict=True):
            yield self.message[start : start + prod(shape)].reshape(shape)

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
    """The last description to a GPU of pieces that are copied repeatedly.

    Their arrays change, but usually not the strides: then only the addresses are new.
    """

    def __init__(self) -> None:
        self.last: tuple[Hashable, Any] | None = None


class Pieces(NamedTuple):
    """Pieces to copy: their lengths (pieces, axes), and their places in arrays of one dtype.

    Targets overlap neither each other nor sources. ``described`` is a cache for repeated copies of
    the same shapes between the same places.
    """

    shapes: Ints
    target: InArrays | InMessage
    source: InArrays | InMessage
    described: Described | None = None


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
        targets, sources = (each.views(batch.shapes) for each in (batch.target, batch.source))
        for into, piece in zip(targets, sources, strict=True):
            into[...] = piece


def _address(array: Array) -> int:
    address: int = array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr
    return address
