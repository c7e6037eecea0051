"""The named values of a program: arrays in blocks, before and after they have a place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product as cartesian
from typing import Any

from graph_opt.layout import Cuts, Index, Layout

Array = Any
Blocks = dict[Index, Array]


@dataclass(frozen=True)
class Value:
    """An array in blocks, as the graph knows it.

    Parameters
    ----------
    cuts : tuple of tuple of int
        Where each axis is cut, from 0 to its length.
    dtype : str
        The dtype of the blocks.
    blocks : tuple of tuple of int, optional
        The blocks that there are, in row-major order; by default all.
    """

    cuts: tuple[Cuts, ...]
    dtype: str
    blocks: tuple[Index, ...] | None = None

    @property
    def grid(self) -> tuple[int, ...]:
        """Number of blocks along each axis."""
        return tuple(len(cuts) - 1 for cuts in self.cuts)

    def indices(self) -> Sequence[Index]:
        """Return the blocks that there are, in row-major order."""
        if self.blocks is not None:
            return self.blocks
        return list(cartesian(*map(range, self.grid)))

    def placed(self, owners: Sequence[int]) -> Placed:
        """Return the value with the rank that holds each block there is."""
        if self.blocks is None:
            return Placed(Layout(self.cuts, tuple(owners)), self.dtype)
        holders = dict(zip(self.blocks, owners, strict=True))
        everywhere = cartesian(*map(range, self.grid))
        return Placed(
            Layout(self.cuts, tuple(holders.get(index, -1) for index in everywhere)), self.dtype
        )


@dataclass(frozen=True)
class Placed:
    """A value whose blocks have a place."""

    layout: Layout
    dtype: str

    def owners(self) -> Iterator[tuple[Index, int]]:
        """Yield each block there is with the rank that holds it."""
        for index, owner in zip(self.layout.indices(), self.layout.owners, strict=True):
            if owner >= 0:
                yield index, owner

    def transposed(self, axes: tuple[int, ...]) -> Placed:
        """Return the place of the transpose, whose blocks stay where they are."""
        return Placed(self.layout.transposed(axes), self.dtype)
