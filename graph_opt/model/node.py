"""Arrays before they exist: name, chunks, dtype and type of blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product as cartesian

from graph_opt.model.dtype import dtype_named
from graph_opt.model.layout import Index

Chunks = tuple[tuple[int, ...], ...]

NUMPY = "numpy.ndarray"
CUPY = "cupy.ndarray"
CONTAINERS = (NUMPY, CUPY)
"""Types of blocks with kernels."""


@dataclass(frozen=True)
class ArrayNode:
    """One array of a graph.

    Parameters
    ----------
    name : str
        The first element of its blocks' keys.
    chunks : tuple of tuple of int
        Chunk sizes per axis; a size may be NaN when it is unknown.
    dtype : str
        The declared dtype, as NumPy spells it (``"float64"``).
    container : str
        The type of its blocks, for example ``"numpy.ndarray"``.
    """

    name: str
    chunks: Chunks
    dtype: str
    container: str

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.chunks)

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis."""
        return tuple(sum(sizes) for sizes in self.chunks)

    @property
    def grid(self) -> tuple[int, ...]:
        """Number of blocks along each axis."""
        return tuple(map(len, self.chunks))

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return math.prod(self.grid)

    @property
    def indices(self) -> Iterator[Index]:
        """The index of every block, in row-major order."""
        return cartesian(*map(range, self.grid))

    def block_shape(self, index: Index) -> tuple[int, ...]:
        """Return the shape of a block."""
        return tuple(sizes[at] for sizes, at in zip(self.chunks, index, strict=True))

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return self.size * self.itemsize

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return dtype_named(self.dtype).itemsize

    @cached_property
    def known(self) -> bool:
        """Whether every chunk size is known."""
        return not any(math.isnan(size) for sizes in self.chunks for size in sizes)


@dataclass(frozen=True)
class Declined:
    """A piece that stays with Dask, and the reason for the user."""

    name: str
    reason: str


def label(name: str) -> str:
    """Return a layer's name with a short token."""
    operation, _, token = name.rpartition("-")
    return f"{operation}-{token[:8]}"
