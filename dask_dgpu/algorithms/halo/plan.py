"""The plan of a halo exchange: which parts of which blocks go where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np

from dask_dgpu.algorithms.halo.axis import NAMES, Axis, Boundary, Depth, extends_beyond
from dask_dgpu.algorithms.redistribute.cells import Ints, Mask, row_major, unravel, volumes
from graph_opt.model.bare import Bare
from graph_opt.model.layout import Index, Layout, cuts_of


@dataclass(frozen=True)
class HaloPlan(Bare):
    """The plan of one halo exchange on ``size`` ranks.

    Parameters
    ----------
    layout : Layout
        Where the blocks are.
    dtype : str
        That of the blocks.
    depth : tuple of (int, int)
        For each axis, by how much a block is extended before and after.
    boundary : tuple of str, number or None
        For each axis, what is beyond the array; ``None`` is nothing.
    size : int
        Number of ranks of the communicator.
    corners : bool
        Whether ghost cells beyond a block along several axes are filled too.
    wanted : tuple of tuple of int, optional
        The blocks that are extended, in row-major order; all that have an owner by
        default.
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
        """What the extended chunks of each axis consist of."""
        rows = zip(self.layout.cuts, self.depth, self.boundary, strict=True)
        return [Axis.of(*row) for row in rows]

    @cached_property
    def target(self) -> Layout:
        """The extended blocks, as if they were side by side in an array."""
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
        """What the ranks of this process do, as far as it has been asked for."""
        return {}

    def interior(self, index: Index) -> tuple[slice, ...]:
        """Return where in its extended block a block is."""
        starts = (
            before if extends_beyond(boundary) else min(before, cuts[along])
            for along, cuts, (before, _), boundary in zip(
                index, self.layout.cuts, self.depth, self.boundary, strict=True
            )
        )
        lengths = self.layout.block_shape(index)
        return tuple(slice(lo, lo + n) for lo, n in zip(starts, lengths, strict=True))


class Cells:
    """Parts of extended blocks, a segment along each axis, that somebody wants.

    Parameters
    ----------
    plan : HaloPlan
        Whose they are.

    Attributes
    ----------
    segments : array of int
        The segment along each axis: (cells, axes).
    target, source : array of int
        The block that is extended and the one that it comes from, as places in row-major
        order.
    constant : array of int
        The axis whose constant it is, the last of several; -1 for what has a source.
    ghost : array of bool
        Whether it is not the block itself.
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
        """Whether it comes from another rank."""
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
    """Plan how blocks get their ghost cells.

    Parameters
    ----------
    layout : Layout
        Where the blocks are.
    dtype : str
        That of the blocks.
    depth : sequence of (int, int)
        For each axis, by how much a block is extended before and after.
    boundary : sequence of str, number or None
        For each axis what is beyond the array: ``"periodic"``, ``"reflect"`` (the edge is
        repeated), ``"mirror"`` (it is not), ``"nearest"``, a number, or ``None`` or
        ``"none"`` for nothing: then blocks at the edge are extended on one side.
    size : int
        Number of ranks.
    corners : bool, optional
        Whether ghost cells beyond a block along several axes are filled too. A stencil
        that is a star needs none of them, and less messages.
    wanted : sequence of tuple of int, optional
        The blocks that are extended, all that have an owner by default.

    Returns
    -------
    HaloPlan
        The same on every rank: nothing but the arguments enters.

    Raises
    ------
    ValueError
        When an argument is out of range, a block is needed that nobody has, or there is
        nothing that could be repeated beyond an axis.

    Notes
    -----
    Where constants of several axes meet, that of the last axis counts, as if the array
    were padded along one axis after the other.
    """
    kept = None if wanted is None else tuple(sorted(wanted))
    plan = HaloPlan(layout, dtype, tuple(depth), tuple(boundary), size, corners, kept)
    _check(plan)
    cells = plan.cells
    sources = unravel(cells.source[cells.sender < 0], layout.grid).tolist()
    unheld = [*map(tuple, sources), *(index for index in kept or () if layout.owner(index) < 0)]
    if unheld:
        raise ValueError(f"layout has no owner of block {unheld[0]}, which is needed")
    return plan


def _check(plan: HaloPlan) -> None:
    layout = plan.layout
    for name, value in (("depth", plan.depth), ("boundary", plan.boundary)):
        if len(value) != layout.ndim:
            raise ValueError(f"{name} has {len(value)} entries, the array has {layout.ndim} axes")
    for owner in (min(layout.owners, default=-1), max(layout.owners, default=-1)):
        if not -1 <= owner < plan.size:
            raise ValueError(f"layout has the owner {owner}, it must be -1 to {plan.size - 1}")
    for axis, (depth, boundary) in enumerate(zip(plan.depth, plan.boundary, strict=True)):
        if min(depth) < 0:
            raise ValueError(f"depth is {depth} along axis {axis}, it must not be negative")
        if isinstance(boundary, str) and boundary not in NAMES:
            raise ValueError(
                f"boundary is {boundary!r} along axis {axis}, "
                f"it must be one of {', '.join(NAMES)}, or a number"
            )
        repeats = isinstance(boundary, str) and boundary != "none"
        if repeats and max(depth) and not layout.shape[axis]:
            raise ValueError(
                f"boundary is {boundary!r} along axis {axis}, which has no elements to repeat"
            )
