"""The plan of a halo exchange: the parts of blocks in each extended block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np

from dask_dgpu.algorithms.halo.axis import NAMES, Axis, Boundary, Depth, extends_beyond
from dask_dgpu.algorithms.redistribute.cells import Ints, Mask, row_major, unravel, volumes
from dask_dgpu.algorithms.redistribute.plan import check_owners
from graph_opt.model.layout import Bare, Index, Layout, cuts_of


@dataclass(frozen=True)
class HaloPlan(Bare):
    """The plan of one halo exchange on ``size`` ranks.

    Parameters
    ----------
    layout : Layout
        The layout of the blocks.
    dtype : str
        The dtype of the blocks.
    depth : tuple of (int, int)
        Ghost cells before and after a block along each axis.
    boundary : tuple of str, number or None
        The cells beyond the array along each axis; ``None`` for none.
    size : int
        Number of ranks of the communicator.
    corners : bool
        Whether ghost cells beyond a block along several axes are filled too.
    wanted : tuple of tuple of int, optional
        The blocks to extend, in row-major order; by default all with an owner.
    """

    layout: Layout
    dtype: str
    depth: tuple[Depth, ...]
    boundary: tuple[Boundary, ...]
    size: int
    corners: bool = True
    wanted: tuple[Index, ...] | None = None

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return np.dtype(self.dtype).itemsize

    @cached_property
    def axes(self) -> list[Axis]:
        """The segments of each axis."""
        rows = zip(self.layout.cuts, self.depth, self.boundary, strict=True)
        return [Axis.of(*row) for row in rows]

    @cached_property
    def target(self) -> Layout:
        """The extended blocks, as if they were adjacent in an array."""
        owners = self.layout.owners
        if self.wanted is not None:
            kept = set(self.wanted)
            pairs = zip(self.layout.indices(), owners, strict=True)
            owners = tuple(owner if index in kept else -1 for index, owner in pairs)
        return Layout(tuple(cuts_of(axis.lengths) for axis in self.axes), owners)

    @cached_property
    def cells(self) -> Cells:
        """All parts of all extended blocks."""
        return Cells(self)

    @cached_property
    def schedules(self) -> dict[int, Any]:
        """The work of this process's ranks, as far as it is computed."""
        return {}

    def interior(self, index: Index) -> tuple[slice, ...]:
        """Return the place of a block in its extended block."""
        starts = (
            before if extends_beyond(boundary) else min(before, cuts[along])
            for along, cuts, (before, _), boundary in zip(
                index, self.layout.cuts, self.depth, self.boundary, strict=True
            )
        )
        lengths = self.layout.block_shape(index)
        return tuple(slice(lo, lo + n) for lo, n in zip(starts, lengths, strict=True))


class Cells:
    """Wanted parts of extended blocks, a segment along each axis.

    Attributes
    ----------
    segments : array of int
        The segment along each axis: (cells, axes).
    target, source : array of int
        The extended block and the source block, as places in row-major order.
    constant : array of int
        The axis of the constant, the last of several; -1 for a cell with a source.
    ghost : array of bool
        Whether the cell is not the block itself.
    length : array of int
        Number of elements.
    sender, receiver : array of int
        The ranks of source and target; the same for a constant.
    """

    def __init__(self, plan: HaloPlan) -> None:
        axes, grid = plan.axes, plan.layout.grid
        owners = np.array([*plan.layout.owners, -1], np.int64)
        wanted = np.array([*plan.target.owners, -1], np.int64)
        sizes = volumes([axis.length for axis in axes])
        target = row_major([axis.target for axis in axes], grid)
        ghosts = _combined(np.add, [axis.ghost for axis in axes], 0)
        places = [np.where(axis.source < 0, k, -1) for k, axis in enumerate(axes)]
        constant = _combined(np.maximum, places, -1)
        kept = (wanted[target] >= 0) & (sizes > 0)
        if not plan.corners:
            kept &= ghosts <= 1
        self._axes = axes
        chosen = np.flatnonzero(kept)
        self.segments = unravel(chosen, tuple(len(axis.target) for axis in axes))
        self.target, self.length = target[chosen], sizes[chosen]
        self.constant, self.ghost = constant[chosen], ghosts[chosen] > 0
        source = row_major([axis.source for axis in axes], grid)[chosen]
        self.source = np.where(self.constant < 0, source, -1)
        self.receiver = owners[self.target]
        self.sender = np.where(self.constant < 0, owners[self.source], self.receiver)

    def column(self, name: str, cells: Ints) -> Ints:
        """Return a column of the axes' segments for some cells: (cells, axes)."""
        found = [getattr(axis, name)[self.segments[cells, k]] for k, axis in enumerate(self._axes)]
        return np.stack(found, axis=1) if found else np.zeros((len(cells), 0), np.int64)

    @property
    def travels(self) -> Mask:
        """Whether a cell comes from another rank."""
        moved: Mask = self.sender != self.receiver
        return moved


def _combined(operation: Callable[[Any, Any], Any], columns: Sequence[Ints], start: int) -> Ints:
    """Combine the values of every combination of segments along the axes."""
    total = reduce(
        lambda so_far, along: operation(so_far[..., None], along), columns, np.array(start)
    )
    return total.reshape(-1)


def plan_halo(
    layout: Layout,
    dtype: str,
    depth: Sequence[Depth],
    boundary: Sequence[Boundary],
    size: int,
    *,
    corners: bool = True,
    wanted: Sequence[Index] | None = None,
) -> HaloPlan:
    """Plan a halo exchange; see :class:`HaloPlan` for the arguments.

    Star-shaped stencils need no ``corners``, which saves messages. If constants of several axes
    meet, the constant of the last axis counts, as if the array were padded along one axis after the
    other. The plan is the same on every rank.

    Raises
    ------
    ValueError
        If an argument is out of range, a source block has no owner, or there is nothing to repeat
        beyond an axis.
    """
    kept = None if wanted is None else tuple(sorted(wanted))
    plan = HaloPlan(layout, dtype, tuple(depth), tuple(boundary), size, corners, kept)
    _check(plan)
    cells = plan.cells
    sources = unravel(cells.source[cells.sender < 0], layout.grid).tolist()
    missing = [*map(tuple, sources), *(index for index in kept or () if layout.owner(index) < 0)]
    if missing:
        raise ValueError(f"expected an owner of block {missing[0]} in layout, got none")
    return plan


def _check(plan: HaloPlan) -> None:
    layout = plan.layout
    for name, value in (("depth", plan.depth), ("boundary", plan.boundary)):
        if len(value) != layout.ndim:
            raise ValueError(f"expected {layout.ndim} entries in {name}, got {len(value)}")
    check_owners("layout", layout, plan.size)
    for axis, (depth, boundary) in enumerate(zip(plan.depth, plan.boundary, strict=True)):
        if min(depth) < 0:
            raise ValueError(f"expected depths of 0 or more along axis {axis}, got {depth}")
        if isinstance(boundary, str) and boundary not in NAMES:
            raise ValueError(
                f"expected one of {', '.join(NAMES)}, or a number as boundary along axis {axis}, "
                f"got {boundary!r}"
            )
        repeats = isinstance(boundary, str) and boundary != "none"
        if repeats and max(depth) and not layout.shape[axis]:
            raise ValueError(
                f"expected elements to repeat along axis {axis} for boundary {boundary!r}, got none"
            )
