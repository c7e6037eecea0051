"""What one rank does: the program, and the same blocking without any rank."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_dgpu.algorithms.summa.depth import reduce_layers
from dask_dgpu.algorithms.summa.message import Messages
from dask_dgpu.algorithms.summa.plan import SummaPlan
from dask_dgpu.algorithms.summa.schedule import Step, pieces, schedule
from dask_dgpu.comm.protocol import Comm, Work
from dask_dgpu.kernels.device import Device

Array = Any
Block = tuple[int, int]
Blocks = Mapping[Block, Array]
Strip = tuple[int, Array]


def summa_rank(
    plan: SummaPlan,
    comm: Comm,
    device: Device,
    a: Blocks,
    b: Blocks,
    progress: Callable[[int, int], None] = lambda done, steps: None,
) -> dict[Block, Array]:
    """Multiply as one rank.

    Parameters
    ----------
    plan : SummaPlan
        The same on every rank.
    comm : Comm
        Joins ``plan.size`` ranks.
    device : Device
        Where this rank's arrays are.
    a, b : mapping of tuple of int to array
        The blocks that this rank owns, of any strides.
    progress : callable
        Called with the number of steps done and of all steps; may raise to give up.

    Returns
    -------
    dict of tuple of int to array
        The blocks of the product that this rank ends up with: C-contiguous, of
        dtype ``plan.dtype``.

    Notes
    -----
    Every rank receives the pieces of its next panel while it multiplies the
    present one. The peak of memory is the rank's blocks of A, B and C and a
    workspace of four panels: two filled, one message out, one in.
    """
    steps = schedule(plan, comm.rank)
    messages = Messages(plan, comm, device, steps)
    panels = _Panels(plan, device, comm.rank)
    strips = _strips(plan, device, comm.rank)
    operands = (a, b)
    with device.transferring():
        under_way = messages.send(steps[0], operands)
    for at, step in enumerate(steps):
        with device.transferring():
            filled = panels.fill(step, at, messages, under_way, operands)
            if at + 1 < len(steps):
                under_way = messages.send(steps[at + 1], operands)
        with device.computing():
            device.after(filled.ready)
            for top, strip in strips:
                device.accumulate(strip, filled.a[top : top + len(strip)], filled.b)
            panels.used(at, device.mark())
        progress(at + 1, len(steps))
    with device.transferring():
        panels.drain()
    del panels, messages, filled
    if plan.mesh[2] > 1:
        return reduce_layers(plan, comm, device, strips)
    with device.computing():
        return _blocks(plan, comm.rank, strips)


@dataclass(frozen=True)
class _Filled:
    a: Array
    b: Array
    ready: Any


class _Panels:
    """Two buffers for panels, each a piece of A above a piece of B."""

    def __init__(self, plan: SummaPlan, device: Device, rank: int) -> None:
        self.plan, self.device = plan, device
        rows, columns = plan.rectangle(rank)
        self.height, self.width = rows[1] - rows[0], columns[1] - columns[0]
        self.dtype = device.panel_dtype(plan.dtype)
        deepest = max(hi - lo for lo, hi in plan.depth_spans)
        size = (self.height + self.width) * -(-deepest // plan.steps)
        with device.transferring():
            self.buffers = [device.empty(size, self.dtype) for _ in range(min(2, plan.steps))]
        self.marks: list[Any] = [None] * len(self.buffers)

    def fill(
        self,
        step: Step,
        at: int,
        messages: Messages,
        under_way: Work | None,
        operands: tuple[Blocks, Blocks],
    ) -> _Filled:
        """Wait for a step's pieces and put them, and those that are here, in place."""
        which = at % len(self.buffers)
        depth = step.panel[1] - step.panel[0]
        split = self.height * depth
        buffer = self.buffers[which][: split + depth * self.width]
        a = buffer[:split].reshape(self.height, depth)
        b = buffer[split:].reshape(depth, self.width)
        self.device.after(self.marks[which])
        for piece in step.local:
            (a, b)[piece.operand][piece.target] = operands[piece.operand][piece.block][piece.source]
        messages.unpack(step, under_way, (a, b))
        return _Filled(a, b, self.device.mark())

    def used(self, at: int, mark: Any) -> None:
        """Remember when the buffer of a step is free again."""
        self.marks[at % len(self.buffers)] = mark

    def drain(self) -> None:
        """Hold the current lane back until the buffers may be freed on it."""
        for mark in self.marks:
            self.device.after(mark)


def _strips(plan: SummaPlan, device: Device, rank: int) -> list[Strip]:
    """C, one strip of full width for each block row: few products, and blocks free singly."""
    place = plan.position(rank)
    if place is None:
        return []
    (top, _), (left, right) = plan.rectangle(rank)
    first, last = plan.row_spans[place[0]]
    rows = plan.a.rows[first : last + 1]
    with device.computing():
        return [
            (lo - top, device.zeros((hi - lo, right - left), plan.accumulator))
            for lo, hi in itertools.pairwise(rows)
        ]


def _blocks(plan: SummaPlan, rank: int, strips: list[Strip]) -> dict[Block, Array]:
    """Cut the strips into blocks, freeing each strip in turn."""
    place = plan.position(rank)
    if place is None:
        return {}
    first, (j0, j1) = plan.row_spans[place[0]][0], plan.column_spans[place[1]]
    cuts = plan.b.columns
    blocks: dict[Block, Array] = {}
    for i in range(first, first + len(strips)):
        _, strip = strips.pop(0)
        for j in range(j0, j1):
            part = strip[:, cuts[j] - cuts[j0] : cuts[j + 1] - cuts[j0]]
            alone = part.shape == strip.shape
            blocks[i, j] = part.astype(plan.dtype, order="C", copy=not alone)
    return blocks


def summa_reference(plan: SummaPlan, a: Blocks, b: Blocks) -> dict[Block, Array]:
    """Multiply with the plan's blocking and order of sums, sequentially, in NumPy."""
    partial: dict[Block, Array] = {}
    dtype = plan.accumulator
    for rank in sorted(plan.places, key=lambda rank: (plan.position(rank) or (0, 0, 0))[2]):
        rows, columns = plan.rectangle(rank)
        total = np.zeros((rows[1] - rows[0], columns[1] - columns[0]), dtype)
        for step in range(plan.steps):
            lo, hi = plan.panel(rank, step)
            panels = (
                np.zeros((len(total), hi - lo), dtype),
                np.zeros((hi - lo, total.shape[1]), dtype),
            )
            for piece in pieces(plan, rank, step):
                panels[piece.operand][piece.target] = (a, b)[piece.operand][piece.block][
                    piece.source
                ]
            total += panels[0] @ panels[1]
        place = plan.position(rank)
        assert place is not None  # `rank` is one of `places`
        for i, j in plan.final_layers(place[0], place[1]):
            top, left = plan.a.rows[i] - rows[0], plan.b.columns[j] - columns[0]
            bottom, right = plan.a.rows[i + 1] - rows[0], plan.b.columns[j + 1] - columns[0]
            part = total[top:bottom, left:right]
            partial[i, j] = partial[i, j] + part if (i, j) in partial else part
    return {block: value.astype(plan.dtype) for block, value in partial.items()}
