"""The plan of a halo exchange, and its cost: bytes between ranks, memory, seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dask_dgpu.algorithms.halo.cells import (
    Assembly,
    Axis,
    Boundary,
    Cells,
    Depth,
    extends_beyond,
)
from dask_dgpu.algorithms.redistribute.moves import Ints, indices_at, table_of
from dask_dgpu.algorithms.redistribute.plan import check_owners
from graph_opt.model.cost import Machine
from graph_opt.model.hosts import transfer_seconds
from graph_opt.model.layout import Bare, Index, Layout, cuts_of

NAMES = ("none", "periodic", "reflect", "mirror", "nearest")
"""Boundaries, besides None and a number."""


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
        lengths = (
            np.bincount(axis.target, axis.length, blocks).astype(np.int64).tolist()
            for axis, blocks in zip(self.axes, self.layout.grid, strict=True)
        )
        return Layout(tuple(map(cuts_of, lengths)), owners)

    @cached_property
    def cells(self) -> Cells:
        """All parts of all extended blocks."""
        return Cells(self)

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
    missing = indices_at(cells.source[cells.sender < 0], layout.grid)
    missing += (index for index in kept or () if layout.owner(index) < 0)
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


def traffic(plan: Assembly) -> Ints:
    """Return the bytes that each rank sends to each: ``traffic(plan)[sender, receiver]``."""
    cells, shape = plan.cells, (plan.size, plan.size)
    moved = cells.sender != cells.receiver
    elements = table_of(cells.sender[moved], cells.receiver[moved], cells.length[moved], shape)
    return elements * plan.itemsize


def workspace(plan: Assembly) -> int:
    """Return the bytes of the messages of the busiest rank, in and out."""
    counts = traffic(plan)
    return int((counts.sum(axis=0) + counts.sum(axis=1)).max(initial=0))


def cost(plan: Assembly, machine: Machine, *, copied: bool = True) -> float:
    """Predict the seconds of an exchange on the busiest rank.

    ``copied`` is whether the blocks themselves are copied too, while messages are in transit.
    """
    counts = traffic(plan)
    sent, received = counts.sum(axis=1), counts.sum(axis=0)
    transfer = transfer_seconds(counts, machine) + (machine.latency if counts.any() else 0.0)
    inside = 0
    if copied:
        inside = max(plan.target.share(rank, plan.itemsize) for rank in range(plan.size))
    packed = 2 * int((sent + received).max(initial=0))
    return packed / machine.memory_bandwidth + max(transfer, 2 * inside / machine.memory_bandwidth)
