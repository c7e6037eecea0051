"""The plan of a halo exchange: the segments and cells of extended blocks, and the cost.

::

    chunks           |__0__|__1__|__2__|         depth (1, 2)
    extended chunk 1     |0|__1__|2_2|           inside the array
    extended chunk 2           |1|__2__|b b|     b: periodic  0 1 of the axis
                                                    reflect   its last, the last but one
                                                    mirror    its last but one, but two
                                                    nearest   its last, twice
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dask_dgpu.algorithms.cells import Axis, Cells, Ints, table_of
from graph_opt.model.cost import Machine, transfer_seconds
from graph_opt.model.layout import Bare, Cuts, Index, Layout, cuts_of

Boundary = str | complex | None
Depth = tuple[int, int]
Run = tuple[int, int, int]
"""The first of some positions, their number, and the step from each to the next."""

CONSTANT = -1
"""The source chunk of constants beyond the array."""


@dataclass(frozen=True)
class Assembly(Bare):
    """The plan of target blocks that consist of parts of the blocks of a layout.

    ``layout`` is that of the blocks that are read, on ``size`` ranks. For each axis, ``depth`` are
    the most ghost cells before and after a block, and ``boundary`` the cells beyond the array,
    ``None`` for none.
    """

    layout: Layout
    dtype: str
    size: int
    depth: tuple[Depth, ...] = ()
    boundary: tuple[Boundary, ...] = ()

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return np.dtype(self.dtype).itemsize

    @cached_property
    def axes(self) -> list[Axis]:
        """The segments of each axis."""
        raise NotImplementedError

    @cached_property
    def target(self) -> Layout:
        """The assembled blocks, as if they were adjacent in an array, and their ranks."""
        raise NotImplementedError

    @cached_property
    def cells(self) -> Cells:
        """All parts of all target blocks."""
        sources, targets = ((each.grid, each.owners) for each in (self.layout, self.target))
        return Cells(self.axes, sources, targets)


def _segments(cuts: Cuts, depth: Depth, boundary: Boundary) -> Iterator[tuple[int, ...]]:
    """Yield the segments of all chunks of an axis, extended."""
    for chunk in range(len(cuts) - 1):
        yield from _extended(cuts, chunk, depth, boundary)


def _extended(
    cuts: Cuts, chunk: int, depth: Depth, boundary: Boundary
) -> Iterator[tuple[int, ...]]:
    """Yield the segments of an extended chunk, in order, as rows of ``Axis``."""
    lo, length = cuts[chunk], cuts[-1]
    first, last = lo - depth[0], cuts[chunk + 1] + depth[1]
    inside = max(0, first), min(length, last)
    if boundary is None:
        first, last = inside
    runs = [
        *_outside(first, 0, length, boundary),
        (inside[0], inside[1] - inside[0], 1),
        *_outside(length, last, length, boundary),
    ]
    at = 0
    for run in runs:
        for source, start, size in _cut(cuts, *run):
            yield chunk, at, size, source, start, run[2], at != lo - first
            at += size


def _outside(start: int, stop: int, length: int, boundary: Boundary) -> Iterator[Run]:
    """Yield the positions that replace ``[start, stop)`` beyond the axis."""
    if start >= stop:
        return
    if not isinstance(boundary, str):
        yield CONSTANT, stop - start, 0
        return
    period = length - 1 if boundary == "mirror" else length
    if boundary == "nearest" or period == 0:
        yield 0 if start < 0 else length - 1, stop - start, 0
        return
    while start < stop:
        turn, along = divmod(start, period)
        size = min(stop, (turn + 1) * period) - start
        if boundary == "periodic" or turn % 2 == 0:
            yield along, size, 1
        else:
            yield length - 1 - along, size, -1
        start += size


def _cut(cuts: Cuts, start: int, size: int, step: int) -> Iterator[tuple[int, int, int]]:
    """Cut a run at chunks: chunk, first position in it, number of positions."""
    if start == CONSTANT:
        yield CONSTANT, 0, size
        return
    while size:
        chunk = bisect_right(cuts, start) - 1
        part = size
        if step:
            part = min(size, cuts[chunk + 1] - start if step > 0 else start - cuts[chunk] + 1)
        yield chunk, start - cuts[chunk], part
        start, size = start + step * part, size - part


@dataclass(frozen=True)
class HaloPlan(Assembly):
    """The plan of one halo exchange.

    ``wanted`` are the blocks to extend, in row-major order; by default all with an owner.
    """

    wanted: tuple[Index, ...] | None = None

    @cached_property
    def axes(self) -> list[Axis]:
        """The segments of each axis."""
        rows = zip(self.layout.cuts, self.depth, self.boundary, strict=True)
        return [Axis.of(list(_segments(*row))) for row in rows]

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

    def interior(self, index: Index) -> tuple[slice, ...]:
        """Return the place of a block in its extended block."""
        starts = (
            min(before, cuts[along]) if boundary is None else before
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
    wanted: Sequence[Index] | None = None,
) -> HaloPlan:
    """Plan a halo exchange; see :class:`HaloPlan` for the arguments.

    If constants of several axes meet, the constant of the last axis counts, as if the array were
    padded along one axis after the other. The plan is the same on every rank. A ValueError says
    that a source block has no owner.
    """
    kept = None if wanted is None else tuple(sorted(wanted))
    plan = HaloPlan(layout, dtype, size, tuple(depth), tuple(boundary), kept)
    plan.cells.check_sources(layout.grid)
    return plan


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
        inside = int(plan.target.shares(plan.size, plan.itemsize).max())
    packed = 2 * int((sent + received).max(initial=0))
    return packed / machine.memory_bandwidth + max(transfer, 2 * inside / machine.memory_bandwidth)
