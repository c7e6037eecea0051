"""The rank program of SUMMA."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dask_dgpu.algorithms import Progress, no_progress
from dask_dgpu.algorithms.summa.depth import Strip, reduce_layers
from dask_dgpu.algorithms.summa.message import Messages
from dask_dgpu.algorithms.summa.plan import SummaPlan
from dask_dgpu.algorithms.summa.pull import Pulls, open_pulls
from dask_dgpu.algorithms.summa.schedule import Piece, Step, schedule
from dask_dgpu.comm.protocol import Comm, Work
from dask_dgpu.kernels import gemm
from dask_dgpu.kernels.device import Device

Array = Any
Block = tuple[int, int]
Blocks = Mapping[Block, Array]


def summa_rank(
    plan: SummaPlan,
    comm: Comm,
    device: Device,
    a: Blocks,
    b: Blocks,
    progress: Progress = no_progress,
) -> dict[Block, Array]:
    """Multiply as one rank; ``progress`` counts panels.

    Every rank receives the pieces of its next panel while it multiplies the present one. If
    plan and transport allow it, it reads them from the owners' blocks, straight into the panel,
    and no rank packs or sends. Blocks that the plan leaves in place are multiplied where they lie.
    The peak of memory is the rank's blocks of A, B and C and four panels: two panels in use, one
    message out and one in. Blocks of C count in ``plan.accumulator``.
    """
    steps = schedule(plan, comm.rank)
    operands = (a, b)
    with device.computing():
        given = device.mark()
    with device.transferring():
        device.after(given)
    pulls = open_pulls(plan, comm, device, steps, operands)
    carrier = pulls or Messages(plan, comm, device, steps)
    panels = _Panels(plan, device, comm.rank)
    strips = _strips(plan, device, comm.rank)
    with device.transferring():
        under_way = carrier.send(steps[0], operands)
    for at, step in enumerate(steps):
        with device.transferring():
            filled = panels.fill(step, at, carrier, under_way, operands)
            if at + 1 < len(steps):
                under_way = carrier.send(steps[at + 1], operands)
        with device.computing():
            device.after(filled.ready)
            _multiply(strips, filled)
            panels.used(at, device.mark())
        progress(at + 1, len(steps))
    with device.transferring():
        carrier.close()
        panels.drain()
    del panels, carrier, pulls, filled, under_way
    if plan.mesh[2] > 1:
        return reduce_layers(plan, comm, device, strips)
    with device.computing():
        return _blocks(plan, strips)


@dataclass(frozen=True)
class _Factor:
    """A part of an operand in a step, from a position along the contraction on.

    ``column`` is the first column of a part of B within its strips.
    """

    values: Array
    start: int = 0
    column: int = 0


@dataclass(frozen=True)
class _Panel:
    """The factors of a step: a piece of A, and a piece of B for each group of block columns.

    An operand in place has parts of its blocks instead, by block rows of A and groups of B, in
    their order along the contraction.
    """

    a: Array
    b: list[Array]
    starts: list[int]
    left: dict[int, list[_Factor]] | None
    right: dict[int, list[_Factor]] | None
    ready: Any = None

    def place(self, piece: Piece) -> Array:
        """Return the place of a piece in the panel."""
        if piece.operand == 0:
            return self.a[piece.target]
        group, columns = self._columns(piece)
        return self.b[group][piece.target[0], columns]

    def add(self, piece: Piece, block: Array) -> None:
        """Add a piece of this rank's own block: in place, or copied into the panel."""
        values, (rows, columns) = block[piece.source], piece.target
        if piece.operand == 0 and self.left is not None:
            self.left.setdefault(piece.block[0], []).append(_Factor(values, columns.start))
        elif piece.operand == 1 and self.right is not None:
            group, within = self._columns(piece)
            self.right.setdefault(group, []).append(_Factor(values, rows.start, within.start))
        else:
            self.place(piece)[...] = values

    def factors(self, strip: Strip) -> Iterator[tuple[_Factor, _Factor]]:
        """Yield the factors whose products are added to a strip, both sides of equal length."""
        if self.left is None:
            left = [_Factor(self.a[strip.top : strip.top + len(strip.sums)])]
        else:
            left = self.left.get(strip.row, [])
        if self.right is None:
            right = [_Factor(self.b[strip.group])]
        else:
            right = self.right.get(strip.group, [])
        starts = [factor.start for factor in left]
        for b in right:
            end = b.start + len(b.values)
            for a in left[max(0, bisect_right(starts, b.start) - 1) : bisect_left(starts, end)]:
                lo, hi = max(a.start, b.start), min(a.start + a.values.shape[1], end)
                if lo < hi:
                    columns, rows = (
                        slice(lo - a.start, hi - a.start),
                        slice(lo - b.start, hi - b.start),
                    )
                    yield replace(a, values=a.values[:, columns]), replace(b, values=b.values[rows])

    def _columns(self, piece: Piece) -> tuple[int, slice]:
        """Return the group of a piece of B, and its columns within the group."""
        columns = piece.target[1]
        group = bisect_right(self.starts, columns.start) - 1
        start = self.starts[group]
        return group, slice(columns.start - start, columns.stop - start)


def _multiply(strips: list[Strip], panel: _Panel) -> None:
    for strip in strips:
        for a, b in panel.factors(strip):
            columns = slice(b.column, b.column + b.values.shape[1])
            gemm.accumulate(strip.sums[:, columns], a.values, b.values)


class _Panels:
    """Two buffers for panels, each a piece of A followed by a piece of B."""

    def __init__(self, plan: SummaPlan, device: Device, rank: int) -> None:
        self.plan, self.device = plan, device
        rows, columns = plan.rectangle(rank)
        left, right = plan.in_place
        self.height = 0 if left else rows[1] - rows[0]
        self.width = 0 if right else columns[1] - columns[0]
        self.starts = [plan.b.columns[j] - columns[0] for j, _ in plan.groups(rank)]
        self.dtype = gemm.factor_dtype(device.kind, plan.dtype)
        size = (self.height + self.width) * -(-plan.deepest // plan.steps)
        with device.transferring():
            self.buffers = [
                device.workspace(f"panel-{at}", size, self.dtype)
                for at in range(min(2, plan.steps))
            ]
        self.marks: list[Any] = [None] * len(self.buffers)

    def fill(
        self,
        step: Step,
        at: int,
        carrier: Messages | Pulls,
        under_way: Work | None,
        operands: tuple[Blocks, Blocks],
    ) -> _Panel:
        """Add local pieces to a panel, and wait for the pieces of other ranks."""
        which = at % len(self.buffers)
        depth = step.panel[1] - step.panel[0]
        split = self.height * depth
        buffer, rest = self.buffers[which][:split], self.buffers[which][split:]
        b: list[Array] = []
        parts: list[dict[int, list[_Factor]] | None] = [
            {} if there else None for there in self.plan.in_place
        ]
        left, right = parts
        if right is None:
            edges = zip(self.starts, [*self.starts[1:], self.width], strict=True)
            b = [rest[depth * lo : depth * hi].reshape(depth, hi - lo) for lo, hi in edges]
        panel = _Panel(buffer.reshape(self.height, depth), b, self.starts, left, right)
        self.device.after(self.marks[which])
        for piece in step.local:
            panel.add(piece, operands[piece.operand][piece.block])
        carrier.unpack(step, under_way, panel.place)
        return replace(panel, ready=self.device.mark())

    def used(self, at: int, mark: Any) -> None:
        """Remember when the buffer of a step is free again."""
        self.marks[at % len(self.buffers)] = mark

    def drain(self) -> None:
        """Let the current lane wait until the buffers may be freed on it."""
        for mark in self.marks:
            self.device.after(mark)


def _strips(plan: SummaPlan, device: Device, rank: int) -> list[Strip]:
    """Allocate C in strips of one block row and as many block columns as the workspace allows.

    Products are few, and each strip is freed as soon as it is cut into blocks.
    """
    place = plan.position(rank)
    if place is None:
        return []
    (top, _), _ = plan.rectangle(rank)
    rows, columns = plan.a.rows, plan.b.columns
    with device.computing():
        return [
            Strip(
                i,
                span,
                group,
                rows[i] - top,
                device.zeros(
                    (rows[i + 1] - rows[i], columns[span[1]] - columns[span[0]]), plan.accumulator
                ),
            )
            for i in range(*plan.row_spans[place[0]])
            for group, span in enumerate(plan.groups(rank))
        ]


def _blocks(plan: SummaPlan, strips: list[Strip]) -> dict[Block, Array]:
    """Cut the strips into blocks, freeing each strip in turn."""
    blocks: dict[Block, Array] = {}
    while strips:
        strip = strips.pop(0)
        for block, part in strip.cut(plan.b.columns):
            alone = part.shape == strip.sums.shape
            blocks[block] = part.astype(plan.dtype, order="C", copy=not alone)
    return blocks
