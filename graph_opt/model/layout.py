"""Layouts: the cuts of each axis, and the rank that owns each block.

An axis of chunks ``(3, 3, 2)`` has the cuts ``(0, 3, 6, 8)``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from itertools import product as cartesian
from math import prod

import numpy as np

Cuts = tuple[int, ...]
Span = tuple[int, int]
Index = tuple[int, ...]


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


def dealt(blocks: int, owners: int) -> tuple[int, ...]:
    """Return the owner of each block if blocks are divided evenly, in order."""
    spans = block_spans(tuple(range(blocks + 1)), owners)
    return tuple(owner for owner, (lo, hi) in enumerate(spans) for _ in range(lo, hi))


def overlaps(cuts: Cuts, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield ``(chunk, lo, hi)`` for every chunk that overlaps ``[start, stop)``.

    ``lo`` and ``hi`` are positions on the axis, not within the chunk. Empty
    chunks and empty spans yield nothing.
    """
    for chunk in range(len(cuts) - 1):
        lo, hi = max(start, cuts[chunk]), min(stop, cuts[chunk + 1])
        if lo < hi:
            yield chunk, lo, hi


@dataclass(frozen=True)
class Layout:
    """The blocks of an array, and the rank that owns each.

    Parameters
    ----------
    cuts : tuple of tuple of int
        The cuts of each axis.
    owners : tuple of int
        The rank of each block, in row-major order; -1 for a block without an owner.

    Raises
    ------
    ValueError
        If there is not one owner for each block.
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

    @property
    def grid(self) -> tuple[int, ...]:
        """Number of blocks along each axis."""
        return tuple(len(cuts) - 1 for cuts in self.cuts)

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

    def block_shape(self, index: Index) -> tuple[int, ...]:
        """Return the lengths of a block."""
        return tuple(cuts[at + 1] - cuts[at] for cuts, at in zip(self.cuts, index, strict=True))

    def share(self, rank: int, itemsize: int) -> int:
        """Return the bytes of a rank's blocks."""
        return self._elements[rank] * itemsize

    @cached_property
    def _elements(self) -> Counter[int]:
        """The number of elements of each rank."""
        lengths = [[hi - lo for lo, hi in pairwise(cuts)] for cuts in self.cuts]
        found: Counter[int] = Counter()
        for shape, owner in zip(cartesian(*lengths), self.owners, strict=True):
            found[owner] += prod(shape)
        return found

    def transposed(self, axes: Sequence[int]) -> Layout:
        """Return the layout of the transpose: its axis k is axis ``axes[k]`` of this one."""
        if sorted(axes) != list(range(self.ndim)):
            raise ValueError(f"expected axes to order {self.ndim} axes, got {tuple(axes)}")
        owners = np.reshape(self.owners, self.grid).transpose(axes)
        return Layout(tuple(self.cuts[axis] for axis in axes), tuple(owners.ravel().tolist()))
