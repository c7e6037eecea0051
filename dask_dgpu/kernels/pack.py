"""Copying many pieces of arrays at once: in and out of messages, and between blocks.

Pieces come as tables, one row a piece, and not as views: of thousands of pieces
Python would need longer to make the views than a GPU to copy them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np

Array = Any
Ints = np.ndarray[Any, np.dtype[np.int64]]


class Arrays:
    """Arrays of one number of axes, with what a GPU needs to know of them.

    Parameters
    ----------
    arrays : sequence of array
        Of NumPy or CuPy, of any strides.
    """

    def __init__(self, arrays: Sequence[Array]) -> None:
        self.arrays = arrays

    @cached_property
    def addresses(self) -> Ints:
        """Where the first element of each is."""
        return np.array([_address(array) for array in self.arrays], np.int64)

    @cached_property
    def strides(self) -> Ints:
        """Bytes from one element to the next along each axis: (arrays, axes)."""
        ndim = self.arrays[0].ndim if self.arrays else 0
        strides = [array.strides for array in self.arrays]
        return np.array(strides, np.int64).reshape(len(strides), ndim)


class InArrays(NamedTuple):
    """Places of pieces in arrays: for each piece, which array, and its first element there."""

    arrays: Arrays
    which: Ints
    start: Ints

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return int(self.arrays.arrays[0].itemsize)

    def views(self, shapes: Ints) -> Iterator[Array]:
        """Yield the pieces."""
        rows = self.which.tolist(), self.start.tolist(), shapes.tolist()
        for which, start, shape in zip(*rows, strict=True):
            slices = (slice(lo, lo + n) for lo, n in zip(start, shape, strict=True))
            yield self.arrays.arrays[which][..., *slices]  # an array even without axes

    def addresses(self, shapes: Ints) -> tuple[Ints, Ints]:
        """Return the address of each piece, and its strides."""
        strides = self.arrays.strides[self.which]
        return self.arrays.addresses[self.which] + (self.start * strides).sum(axis=1), strides


class InMessage(NamedTuple):
    """Places of pieces in a flat array: for each piece, its first element; it is C-contiguous."""

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

    def addresses(self, shapes: Ints) -> tuple[Ints, Ints]:
        """Return the address of each piece, and its strides."""
        strides = np.full_like(shapes, self.itemsize)
        strides[:, :-1] *= np.cumprod(shapes[:, :0:-1], axis=1)[:, ::-1]
        return _address(self.message) + self.start * self.itemsize, strides


class Pieces(NamedTuple):
    """Pieces to copy.

    Attributes
    ----------
    shapes : array of int
        Their lengths: (pieces, axes).
    target, source : InArrays or InMessage
        Where they go to and come from: arrays of the same dtype. Targets do not
        overlap each other, nor the sources.
    """

    shapes: Ints
    target: InArrays | InMessage
    source: InArrays | InMessage

    @classmethod
    def of(cls, pairs: Iterable[tuple[Array, Array]]) -> Pieces:
        """Copy the second of each pair of arrays to the first, of the same shape."""
        targets, sources = zip(*pairs, strict=True)
        ndim = targets[0].ndim
        which = np.arange(len(targets))
        start = np.zeros((len(targets), ndim), np.int64)
        shapes = np.array([target.shape for target in targets], np.int64).reshape(start.shape)
        return cls(
            shapes,
            InArrays(Arrays(targets), which, start),
            InArrays(Arrays(sources), which, start),
        )


def copy_host(*batches: Pieces) -> None:
    """Copy pieces in NumPy memory.

    Parameters
    ----------
    *batches : Pieces
        What is copied.
    """
    for shapes, target, source in batches:
        for into, piece in zip(target.views(shapes), source.views(shapes), strict=True):
            into[...] = piece


def _address(array: Array) -> int:
    address: int = array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr
    return address
