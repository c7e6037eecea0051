"""Copying many pieces of arrays at once: in and out of messages, and between blocks.

Pieces come as tables, one row a piece, and not as views: of thousands of pieces
Python would need longer to make the views than a GPU to copy them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
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

    @property
    def bases(self) -> Ints:
        """The address of the array that holds each piece."""
        return self.arrays.addresses[self.which]

    @property
    def form(self) -> Hashable:
        """What :meth:`offsets` depends on beside the places."""
        return tuple(array.strides for array in self.arrays.arrays)

    def offsets(self, shapes: Ints) -> tuple[Ints, Ints]:
        """Return where in its array each piece is, in bytes, and its strides."""
        strides = self.arrays.strides[self.which]
        return (self.start * strides).sum(axis=1), strides


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

    @property
    def bases(self) -> Ints:
        """The address of the message, for each piece."""
        return np.full(len(self.start), _address(self.message), np.int64)

    @property
    def form(self) -> Hashable:
        """What :meth:`offsets` depends on beside the places."""
        return self.itemsize

    def offsets(self, shapes: Ints) -> tuple[Ints, Ints]:
        """Return where in the message each piece is, in bytes, and its strides."""
        strides = np.full_like(shapes, self.itemsize)
        strides[:, :-1] *= np.cumprod(shapes[:, :0:-1], axis=1)[:, ::-1]
        return self.start * self.itemsize, strides


class Described:
    """What a GPU was told last of pieces that are copied again and again.

    The next time their arrays are others, in other places, but as a rule of the same
    strides: then only the places are new.
    """

    def __init__(self) -> None:
        self.last: tuple[Hashable, Any] | None = None


class Pieces(NamedTuple):
    """Pieces to copy.

    Attributes
    ----------
    shapes : array of int
        Their lengths: (pieces, axes).
    target, source : InArrays or InMessage
        Where they go to and come from: arrays of the same dtype. Targets do not
        overlap each other, nor the sources.
    described : Described, optional
        Kept by whoever copies pieces of the same shapes from and to the same places in
        their arrays again.
    """

    shapes: Ints
    target: InArrays | InMessage
    source: InArrays | InMessage
    described: Described | None = None

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
    for shapes, target, source, _ in batches:
        for into, piece in zip(target.views(shapes), source.views(shapes), strict=True):
            into[...] = piece


def _address(array: Array) -> int:
    address: int = array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr
    return address
