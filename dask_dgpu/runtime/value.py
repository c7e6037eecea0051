"""The named values of a program: arrays in blocks, before and after they have a place."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product as cartesian
from typing import Any

from graph_opt.layout import Cuts, Layout

Array = Any
Index = tuple[int, ...]
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
        indices = cartesian(*map(range, self.layout.grid))
        for index, owner in zip(indices, self.layout.owners, strict=True):
            if owner >= 0:
                yield index, owner

    def transposed(self, axes: tuple[int, ...]) -> Placed:
        """Return the layout of the transpose, whose blocks stay where they are."""
        cuts = tuple(self.layout.cuts[axis] for axis in axes)
        strides = [math.prod(self.layout.grid[axis + 1 :]) for axis in axes]
        indices = cartesian(*(range(len(axis) - 1) for axis in cuts))
        owners = tuple(
            self.layout.owners[sum(at * stride for at, stride in zip(index, strides, strict=True))]
            for index in indices
        )
        return Placed(Layout(cuts, owners), self.dtype)
