"""The plan of a product of stacks in which every rank computes whole blocks of the result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from dask_dgpu.algorithms.cells import Ints, elements
from dask_dgpu.algorithms.redistribute.plan import settled
from graph_opt.model.cost import Machine, pipelined
from graph_opt.model.layout import Bare, Layout, dealt

ROUNDS = (1, 2, 4, 8, 16)
"""Numbers of rounds: each is hidden behind the products of the one before."""

ENOUGH = 4
"""Blocks of a stack are split further among ranks if there are fewer than this for each rank."""


@dataclass(frozen=True)
class StackPlan(Bare):
    """The plan of one product of stacks on ``size`` ranks.

    ``a`` and ``b`` are layouts of the operands: (batch, rows, inner) and (batch, inner, columns).
    ``dtype`` is that of the result and of the accumulation (float16 accumulates in float32).
    ``owners`` are the ranks that compute the blocks of the result (batch, rows, columns).
    """

    a: Layout
    b: Layout
    dtypes: tuple[str, str]
    dtype: str
    size: int
    owners: tuple[int, ...]

    @property
    def accumulator(self) -> str:
        """The dtype of sums."""
        return "float32" if self.dtype == "float16" else self.dtype

    @cached_property
    def result(self) -> Layout:
        """The layout of the result."""
        (batch, rows, _), (_, _, columns) = self.a.cuts, self.b.cuts
        return Layout((batch, rows, columns), self.owners)

    @property
    def share(self) -> int:
        """Most bytes of a rank in the blocks of all three stacks."""
        stacks = zip((self.a, self.b, self.result), (*self.dtypes, self.accumulator), strict=True)
        shares = [layout.shares(self.size, np.dtype(dtype).itemsize) for layout, dtype in stacks]
        return int(np.sum(shares, axis=0).max())


@dataclass(frozen=True)
class OwnerPlan(StackPlan):
    """A product in which each rank computes whole blocks, in so many ``rounds``.

    It receives what it lacks for a round during the one before.
    """

    rounds: int = 1

    @cached_property
    def turns(self) -> Ints:
        """The round of each block of the result on its rank, in the shape of its grid."""
        owners = np.array(self.owners, np.int64)
        turns = np.zeros(len(owners), np.int64)
        for rank in range(self.size):
            (mine,) = np.nonzero(owners == rank)
            turns[mine] = np.arange(len(mine)) * self.rounds // max(1, len(mine))
        return turns.reshape(self.result.grid)

    @cached_property
    def uses(self) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints]]:
        """First and last round in which each rank reads the blocks of each operand.

        The tables have the shapes (ranks, batch, rows) for A and (ranks, batch, columns) for B: all
        blocks along the contraction are read together. Rounds that do not exist stand for never.
        """
        owners = np.array(self.owners, np.int64).reshape(self.result.grid)
        mine = owners == np.arange(self.size).reshape(-1, 1, 1, 1)
        first = np.where(mine, self.turns, self.rounds)
        last = np.where(mine, self.turns, -1)
        return (first.min(axis=3), last.max(axis=3)), (first.min(axis=2), last.max(axis=2))

    @cached_property
    def missing(self) -> tuple[Ints, Ints]:
        """The bytes that each rank lacks of the blocks along the contraction, tables as above."""
        a, b = (held_bytes(self, which) for which in (0, 1))
        return a.sum(axis=0) - a, b.sum(axis=0) - b

    @cached_property
    def received(self) -> Ints:
        """The bytes that each rank receives for each round, (ranks, rounds)."""
        return self._in_rounds(lambda at, first, last: first == at)

    @property
    def held(self) -> int:
        """Most bytes of a rank in received blocks: those in use, and those of the next round."""
        held = self._in_rounds(lambda at, first, last: (first <= at + 1) & (last >= at))
        return int(held.max(initial=0))

    def _in_rounds(self, counted: Any) -> Ints:
        turns = np.zeros((self.size, self.rounds), np.int64)
        for i in range(self.rounds):
            for (first, last), missing in zip(self.uses, self.missing, strict=True):
                there = counted(i, first, last) & (last >= 0)
                turns[:, i] += np.where(there, missing, 0).sum(axis=(1, 2))
        return turns

    @property
    def peak_bytes(self) -> int:
        """Most bytes of a rank: its blocks of all three stacks, and received blocks."""
        return self.share + self.held


def held_bytes(plan: OwnerPlan, which: int) -> Ints:
    """Return the bytes of an operand that each rank has, summed along the contraction.

    Tables are as those of :attr:`OwnerPlan.uses`.
    """
    layout = (plan.a, plan.b)[which]
    sizes = elements(layout).reshape(layout.grid)
    owners = np.array(layout.owners, np.int64).reshape(layout.grid)
    mine = owners == np.arange(plan.size).reshape(-1, 1, 1, 1)
    nbytes: Ints = np.where(mine, sizes, 0).sum(axis=3 if which == 0 else 2)
    return nbytes * np.dtype(plan.dtypes[which]).itemsize


def plan_owners(
    a: Layout,
    b: Layout,
    dtypes: tuple[str, str],
    dtype: str,
    size: int,
    machine: Machine,
    room: float | None = None,
) -> OwnerPlan:
    """Choose the rank of each block of the result and the number of rounds, by predicted cost.

    Blocks of the result go to ranks together: all of a block of the batch, or those of a block
    row, of a block column, or alone. Each rank gets its even share, and most of its operands are
    already there. ``room`` are the bytes of memory of a rank.
    """
    grid = a.grid[0], a.grid[1], b.grid[2]
    bare = OwnerPlan(a, b, dtypes, dtype, size, (0,) * prod(grid))
    best: tuple[float, float, OwnerPlan] | None = None
    for split in _splits(grid, size):
        plan = replace(bare, owners=_owners(bare, split))
        most = int(np.bincount(plan.owners, minlength=1).max())
        for rounds in ROUNDS:
            timed = replace(plan, rounds=rounds)
            over = 0.0 if room is None else max(0.0, timed.peak_bytes - room)
            quickest = over, cost(timed, machine), timed
            if best is None or quickest[:2] < best[:2]:
                best = quickest
            if rounds >= most or not timed.received.any():
                break  # more rounds change nothing
    assert best is not None  # there is always a first
    return best[2]


def _splits(grid: tuple[int, int, int], size: int) -> Iterator[tuple[bool, bool]]:
    """Yield whether block rows, and block columns, of a block of the batch go to several ranks."""
    batch, *blocks = grid
    yield False, False
    if batch < ENOUGH * size:
        for split in ((True, False), (False, True), (True, True)):
            if all(count > 1 for count, parted in zip(blocks, split, strict=True) if parted):
                yield split


def _owners(plan: OwnerPlan, split: tuple[bool, bool]) -> tuple[int, ...]:
    """Deal the blocks of the result to ranks, evenly, and to those that have most of them."""
    grid = plan.result.grid
    sizes = elements(plan.result).reshape(grid)
    a, b = held_bytes(plan, 0)[:, :, :, None], held_bytes(plan, 1)[:, :, None, :]
    for axis, parted in enumerate(split, 1):
        if not parted:
            sizes = sizes.sum(axis=axis, keepdims=True)
            a, b = (each.sum(axis=axis + 1, keepdims=True) for each in (a, b))
    held = np.broadcast_to(a + b, (plan.size, *sizes.shape)).reshape(plan.size, -1).T
    each = sizes.ravel().tolist()
    units = np.array(settled(held, each, dealt(len(each), plan.size, each)), np.int64)
    owners = np.broadcast_to(units.reshape(sizes.shape), grid)
    return tuple(owners.ravel().tolist())


def cost(plan: OwnerPlan, machine: Machine) -> float:
    """Predict the seconds of a plan."""
    (_, rows, inners), (_, _, columns) = plan.a.lengths, plan.b.lengths
    (m, k, n), inner = map(max, (rows, inners, columns)), plan.a.grid[2]
    itemsize = np.dtype(plan.accumulator).itemsize
    elements = int(plan.result.shares(plan.size, 1).max())
    rate = machine.product_rate((m, k, n), plan.accumulator)
    compute = 2 * elements * (plan.a.cuts[2][-1] + inner * machine.ramp) / rate
    compute = max(compute, 2 * inner * elements * itemsize / machine.memory_bandwidth)
    received, link = plan.received, machine.rank_rate(plan.size)
    transfer = received.sum(axis=1).max() / link
    first = received[:, 0].max() / link
    seconds = pipelined(compute, transfer, first, plan.rounds)
    return float(seconds + machine.latency * np.count_nonzero(received.any(axis=0)))
