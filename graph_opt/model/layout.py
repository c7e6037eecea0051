"""Arrays before they exist: dtypes, chunks and their cuts, and the rank that owns each block.

An axis of chunks ``(3, 3, 2)`` has the cuts ``(0, 3, 6, 8)``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, wraps
from itertools import accumulate, pairwise
from itertools import product as cartesian
from math import isnan, prod
from typing import Any, TypeVar, cast

import numpy as np

P = TypeVar("P")
R = TypeVar("R")
Cuts = tuple[int, ...]
Span = tuple[int, int]
Index = tuple[int, ...]
Chunks = tuple[tuple[int, ...], ...]
Counts = np.ndarray[Any, np.dtype[np.int64]]

BFLOAT16 = "bfloat16"
NUMPY = "numpy.ndarray"
CUPY = "cupy.ndarray"
CONTAINERS = (NUMPY, CUPY)
"""Types of blocks with kernels."""


def dtype_named(name: str) -> np.dtype[Any]:
    """Return a dtype; NumPy knows bfloat16 only after the import of ml_dtypes."""
    if name == BFLOAT16:
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def real_of(dtype: str | np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of real and imaginary parts; a real dtype is returned as it is."""
    real: np.dtype[Any] = np.empty(0, dtype).real.dtype
    return real


def is_bfloat16(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is bfloat16; its NumPy kind is V."""
    return dtype.name == BFLOAT16


def is_inexact(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is of real or complex floating-point numbers."""
    return dtype.kind in "fc" or is_bfloat16(dtype)


class Bare:
    """A dataclass whose cached properties are not pickled: to recompute them takes less time."""

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(cast(Any, self))}


def once_per_rank(function: Callable[[P, int], R]) -> Callable[[P, int], R]:
    """Let the plan, which is ``Bare``, keep the result of ``function(plan, rank)``."""

    @wraps(function)
    def cached(plan: P, rank: int) -> R:
        known: dict[int, R] = vars(plan).setdefault(f"{function.__name__} by rank", {})
        if rank not in known:
            known[rank] = function(plan, rank)
        return known[rank]

    return cached


@dataclass(frozen=True)
class ArrayNode:
    """One array of a graph, by the first element of its blocks' keys.

    Chunk sizes may be NaN for unknown. The dtype is spelled as in NumPy (``"float64"``), and the
    ``container`` is the type of the blocks, for example ``"numpy.ndarray"``.
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
        return prod(self.grid)

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
        return prod(self.shape)

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
        return not any(isnan(size) for sizes in self.chunks for size in sizes)


def known_nbytes(node: ArrayNode | None) -> float:
    """Return the bytes of an array, 0 if unknown."""
    return 0.0 if node is None or not node.known else float(node.size * _itemsize(node))


def _itemsize(node: ArrayNode) -> int:
    """Return the bytes of an element, 0 for structured dtypes: they have no name."""
    try:
        return node.itemsize
    except TypeError:
        return 0


def block_nbytes(node: ArrayNode | None) -> float:
    """Return the average bytes of a block, 0 if unknown."""
    return 0.0 if node is None else known_nbytes(node) / max(1, node.blocks)


@dataclass(frozen=True)
class Declined:
    """A piece that stays with Dask, and the reason for the user."""

    name: str
    reason: str


def counted(count: int, noun: str) -> str:
    """Return a number and its noun, in the plural if it is not 1."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_bytes(nbytes: float) -> str:
    """Return a number of bytes in the largest unit of which there is about one, as Dask does."""
    for i, unit in enumerate(("PiB", "TiB", "GiB", "MiB", "kiB")):
        if nbytes >= 0.9 * (size := 1024 ** (5 - i)):
            return f"{nbytes / size:.2f} {unit}"
    return f"{nbytes} B"


def cuts_of(sizes: Sequence[int]) -> Cuts:
    """Return the cuts of an axis of these chunk sizes."""
    return (0, *accumulate(sizes))


def even_spans(start: int, stop: int, parts: int) -> tuple[Span, ...]:
    """Cut ``[start, stop)`` into ``parts`` spans of equal length, give or take one."""
    length = stop - start
    edges = [start + length * part // parts for part in range(parts + 1)]
    return tuple(pairwise(edges))


def block_spans(cuts: Cuts, parts: int) -> tuple[Span, ...]:
    """Divide chunks among ``parts`` owners: contiguous, and of nearly equal length.

    Returns spans of chunk indices; some are empty if there are fewer chunks than owners.
    """
    chunks, length = len(cuts) - 1, cuts[-1]
    edges = [0]
    for part in range(1, parts):
        edge = _nearest(cuts, length * part / parts) if length else chunks * part // parts
        edges.append(max(edges[-1], edge))
    edges.append(chunks)
    return tuple(pairwise(edges))


def _nearest(cuts: Cuts, position: float) -> int:
    """Return the index of the cut nearest to a position, the first of equals."""
    after = bisect_left(cuts, position)
    before = cuts[max(0, after - 1)]
    if after < len(cuts) and abs(cuts[after] - position) < abs(before - position):
        return after
    return bisect_left(cuts, before)


def dealt(blocks: int, owners: int, sizes: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the owner of each block if blocks, of equal or these sizes, are dealt out in order."""
    cuts = cuts_of(sizes) if any(sizes) else tuple(range(blocks + 1))
    spans = enumerate(block_spans(cuts, owners))
    return tuple(owner for owner, (lo, hi) in spans for _ in range(lo, hi))


def overlaps(cuts: Cuts, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield ``(chunk, lo, hi)`` for every chunk that overlaps ``[start, stop)``.

    ``lo`` and ``hi`` are positions on the axis, not within the chunk. Empty
    chunks and empty spans yield nothing.
    """
    for chunk in range(max(0, bisect_right(cuts, start) - 1), len(cuts) - 1):
        if cuts[chunk] >= stop:
            return
        lo, hi = max(start, cuts[chunk]), min(stop, cuts[chunk + 1])
        if lo < hi:
            yield chunk, lo, hi


def grid_of(cuts: Sequence[Cuts]) -> tuple[int, ...]:
    """Return the number of blocks along each axis."""
    return tuple(len(along) - 1 for along in cuts)


class Blocked(Bare):
    """An array in blocks, by the cuts of each axis."""

    cuts: tuple[Cuts, ...]

    @property
    def grid(self) -> tuple[int, ...]:
        """Number of blocks along each axis."""
        return grid_of(self.cuts)

    @cached_property
    def lengths(self) -> list[list[int]]:
        """The chunk sizes of each axis."""
        return [[hi - lo for lo, hi in pairwise(cuts)] for cuts in self.cuts]

    def block_shape(self, index: Index) -> tuple[int, ...]:
        """Return the shape of a block."""
        return tuple([along[at] for along, at in zip(self.lengths, index, strict=True)])


@dataclass(frozen=True)
class Layout(Blocked):
    """The blocks of an array, and the rank that owns each, in row-major order.

    The owner is -1 for a block without one. Raises ValueError unless each block has one entry.
    """

    cuts: tuple[Cuts, ...]
    owners: tuple[int, ...]

    def __post_init__(self) -> None:
        blocks = prod(self.grid)
        if len(self.owners) != blocks:
            raise ValueError(
                f"expected owners to have {blocks} ranks for a grid of {self.grid}, "
                f"got {len(self.owners)}"
            )

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.cuts)

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis."""
        return tuple(cuts[-1] for cuts in self.cuts)

    def indices(self) -> Iterator[Index]:
        """Yield the index of every block, in row-major order."""
        return cartesian(*map(range, self.grid))

    def owner(self, index: Index) -> int:
        """Return the rank of a block, -1 for no owner."""
        place = 0
        for at, blocks in zip(index, self.grid, strict=True):
            place = place * blocks + at
        return self.owners[place]

    def owned(self, rank: int) -> tuple[Index, ...]:
        """Return the indices of a rank's blocks, in row-major order."""
        blocks = zip(self.indices(), self.owners, strict=True)
        return tuple(index for index, owner in blocks if owner == rank)

    def share(self, rank: int, itemsize: int) -> int:
        """Return the bytes of a rank's blocks."""
        return self._elements[rank] * itemsize

    def shares(self, size: int, itemsize: int) -> Counts:
        """Return the bytes of the blocks of each of ``size`` ranks."""
        return np.array([self.share(rank, itemsize) for rank in range(size)], np.int64)

    @cached_property
    def _elements(self) -> Counter[int]:
        """The number of elements of each rank."""
        counts: Counter[int] = Counter()
        for shape, owner in zip(cartesian(*self.lengths), self.owners, strict=True):
            counts[owner] += prod(shape)
        return counts

    def within(self, cuts: tuple[Cuts, ...], blocks: Any) -> Layout:
        """Return the layout of a larger array, of which only these ``blocks``, an index, exist."""
        owners = np.full(grid_of(cuts), -1, np.int64)
        owners[blocks] = np.reshape(self.owners, self.grid)
        return Layout(cuts, tuple(owners.reshape(-1).tolist()))

    def transposed(self, axes: Sequence[int]) -> Layout:
        """Return the layout of the transpose: its axis k is axis ``axes[k]`` of this one."""
        if sorted(axes) != list(range(self.ndim)):
            raise ValueError(f"expected axes to order {self.ndim} axes, got {tuple(axes)}")
        owners = np.reshape(self.owners, self.grid).transpose(axes)
        return Layout(tuple(self.cuts[axis] for axis in axes), tuple(owners.ravel().tolist()))
