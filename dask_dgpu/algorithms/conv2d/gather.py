"""Boxes of an array, each assembled on one rank from parts of the blocks of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dask_dgpu.algorithms.halo.cells import Axis, Boundary, Cells, Depth
from dask_dgpu.algorithms.redistribute.moves import indices_at
from graph_opt.model.layout import Bare, Index, Layout, cuts_of, overlaps
from graph_opt.model.window import Window

Slices = tuple[slice, ...]


@dataclass(frozen=True)
class GatherPlan(Bare):
    """The boxes under each block of a grid: the product of a window of each axis.

    A box may overlap others. It is an ``Assembly`` of the halo exchange. Zeros within a window are
    left to the caller.

    Parameters
    ----------
    layout : Layout
        The layout of the array.
    dtype : str
        Its dtype.
    windows : tuple of tuple of Window
        For each axis, the windows of the grid.
    owners : tuple of int
        The rank of each box in row-major order, -1 for no rank.
    size : int
        Number of ranks of the communicator.
    """

    layout: Layout
    dtype: str
    windows: tuple[tuple[Window, ...], ...]
    owners: tuple[int, ...]
    size: int

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return np.dtype(self.dtype).itemsize

    @property
    def corners(self) -> bool:
        """All parts are wanted."""
        return True

    @property
    def depth(self) -> tuple[Depth, ...]:
        """There are no ghost cells."""
        return ((0, 0),) * self.layout.ndim

    @property
    def boundary(self) -> tuple[Boundary, ...]:
        """There are no constants."""
        return (None,) * self.layout.ndim

    @cached_property
    def axes(self) -> list[Axis]:
        """The segments of each axis: chunk by chunk under each window."""
        found = []
        for cuts, windows in zip(self.layout.cuts, self.windows, strict=True):
            rows = [
                (at, each.before + lo - each.start, hi - lo, chunk, lo - cuts[chunk], 1, 0)
                for at, each in enumerate(windows)
                for chunk, lo, hi in overlaps(cuts, each.start, each.stop)
            ]
            found.append(Axis(*np.array(rows, np.int64).reshape(len(rows), len(Axis._fields)).T))
        return found

    @cached_property
    def target(self) -> Layout:
        """The boxes, as if they were adjacent in an array."""
        lengths = ([each.length for each in windows] for windows in self.windows)
        return Layout(tuple(map(cuts_of, lengths)), self.owners)

    @cached_property
    def cells(self) -> Cells:
        """All parts of all boxes."""
        return Cells(self)

    def inside(self, index: Index) -> Slices:
        """Return the part of a box that is no zeros."""
        box = [windows[at] for windows, at in zip(self.windows, index, strict=True)]
        return tuple(slice(each.before, each.length - each.after) for each in box)

    def check_owners(self) -> None:
        """Raise a ValueError if a block that is read has no owner."""
        cells = self.cells
        missing = indices_at(cells.source[cells.sender < 0][:1], self.layout.grid)
        if missing:
            raise ValueError(f"expected an owner of block {missing[0]} in layout, got none")


def part_of_block(
    layout: Layout, windows: Sequence[Sequence[Window]], index: Index
) -> tuple[Index, Slices] | None:
    """Return the block that has all of a box, and the place of the box there, if one has."""
    block, place = [], []
    for cuts, along, at in zip(layout.cuts, windows, index, strict=True):
        window = along[at]
        under = list(overlaps(cuts, window.start, window.stop))
        if len(under) != 1:
            return None
        ((chunk, lo, hi),) = under
        block.append(chunk)
        place.append(slice(lo - cuts[chunk], hi - cuts[chunk]))
    return tuple(block), tuple(place)


def whole_on(layout: Layout, ranks: Sequence[bool], dtype: str) -> GatherPlan:
    """Plan a copy of a whole array for some ranks, without those that own its only block.

    Box r, along the first axis, is that of rank r.
    """
    owner = layout.owners[0] if len(layout.owners) == 1 else -1
    owners = tuple(rank if wanted and rank != owner else -1 for rank, wanted in enumerate(ranks))
    first, *others = (Window(0, length) for length in layout.shape)
    windows = ((first,) * len(ranks), *((each,) for each in others))
    return GatherPlan(layout, dtype, windows, owners, len(ranks))
