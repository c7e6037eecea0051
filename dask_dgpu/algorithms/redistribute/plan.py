"""The plan of a redistribution: two layouts, the cuts of blocks into units, and the cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import prod, sqrt

import numpy as np

from dask_dgpu.algorithms.redistribute.moves import (
    Ints,
    Moves,
    Overlap,
    indices_at,
    overlap,
    table_of,
)
from graph_opt.model.cost import Machine, pipelined
from graph_opt.model.hosts import Hosts, relayed_bytes, relays, transfer_seconds
from graph_opt.model.layout import Bare, Cuts, Layout, Lengths, even_spans

LEAST = 64 << 20
"""Bytes that the buffers of a redistribution may always take."""

ROUND_SECONDS = 1e-3
"""Time of the host to describe, pack and send a round of any size."""

PIECE_SECONDS = 2e-5
"""Time of the host for the messages of a round, for each rank; it counts on several hosts."""

MANY = 128
"""Ranks above which units are larger: a plan knows the pieces of all ranks."""

UNITS_A_ROUND = 4
"""Approximate number of units that fill a rank's buffers in a round."""


@dataclass(frozen=True)
class RedistributePlan(Bare):
    """The plan of one redistribution on ``size`` ranks.

    Parameters
    ----------
    source, target : Layout
        Layouts before and after, of the same shape.
    dtype : str
        The dtype of the blocks.
    size : int
        Number of ranks of the communicator.
    limit : int
        Maximum bytes of a rank's message buffers.
    unit_cuts : tuple of tuple of int
        For each axis the cuts of the source and more. Each unit between them is read and sent in
        one round.
    transformed : bool
        Whether the caller's ``read`` computes units; their memory then counts within ``limit``.
    hosts : tuple of int
        Number of ranks on each host if rounds are exchanged in two levels, within hosts and then
        between them, with the memory of relays beyond ``limit``; else empty.
    """

    source: Layout
    target: Layout
    dtype: str
    size: int
    limit: int
    unit_cuts: tuple[Cuts, ...]
    transformed: bool = False
    hosts: Hosts = ()

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return np.dtype(self.dtype).itemsize

    @property
    def rounds(self) -> int:
        """Number of rounds; 0 if everything is in place."""
        return self.moves.rounds

    @cached_property
    def moves(self) -> Moves:
        """All pieces of all ranks in all rounds."""
        return Moves(self)

    @cached_property
    def overlap(self) -> Overlap:
        """Pairs of overlapping source and target blocks."""
        return overlap(self.source, self.target)

    @cached_property
    def copied(self) -> Ints:
        """Bytes of rank p's blocks for rank q, without kept blocks: ``copied[p, q]``."""
        _, _, sender, receiver, length, kept = self.overlap
        some = (sender >= 0) & (receiver >= 0) & ~kept
        shape = self.size, self.size
        return table_of(sender[some], receiver[some], length[some], shape) * self.itemsize


def plan_redistribute(
    source: Layout,
    target: Layout,
    dtype: str,
    size: int,
    *,
    limit: int = 64 << 20,
    whole_axes: tuple[int, ...] = (),
    transformed: bool = False,
    units: int = UNITS_A_ROUND,
) -> RedistributePlan:
    """Plan a redistribution; see :class:`RedistributePlan`. The plan is the same on every rank.

    Units are as long as their block along ``whole_axes``. The limit holds if half of it has room
    for the smallest unit: one element, or the elements along ``whole_axes``, twice if it is
    transformed. A larger unit takes a round of its own. About ``units`` fill a round: on
    many ranks fewer do, since their pieces are many and small already.

    Raises
    ------
    ValueError
        If the shapes differ, an owner is no rank, a wanted block has no owner, or another argument
        is out of range.
    """
    _check(source, target, size, limit, whole_axes)
    plan = RedistributePlan(source, target, dtype, size, limit, source.cuts, transformed)
    missing = (plan.overlap.sender < 0) & (plan.overlap.receiver >= 0)
    if missing.any():
        (index,) = indices_at(plan.overlap.source[missing][:1], source.grid)
        raise ValueError(f"expected an owner of block {index} in source, got none")
    away, own = traffic(plan), plan.copied.sum(axis=1) if transformed else 0
    if (away.sum(axis=0) + away.sum(axis=1) + own).max() <= limit:  # in one round
        return plan
    parts = units * (2 if transformed else 1)
    cuts = _unit_cuts(source.cuts, plan.itemsize, max(1, limit // 2 // parts), whole_axes)
    return replace(plan, unit_cuts=cuts)


def in_levels(plan: RedistributePlan, machine: Machine) -> RedistributePlan:
    """Return the plan with exchanges in two levels, if they are predicted to be quicker.

    They send fewer and larger messages between hosts, but most bytes travel within hosts too.
    """
    if not machine.two_level(plan.size):
        return plan
    levels = replace(plan, hosts=machine.hosts)
    vars(levels).update({"overlap": plan.overlap, "moves": plan.moves, "copied": plan.copied})
    return levels if cost(levels, machine) < cost(plan, machine) else plan


def _unit_cuts(
    cuts: tuple[Cuts, ...], itemsize: int, most: int, whole_axes: tuple[int, ...]
) -> tuple[Cuts, ...]:
    """Cut blocks to at most ``most`` bytes along as few axes as possible.

    The first axis comes first, so that the rows of a slice stay long.
    """
    whole = {axis % len(cuts) for axis in whole_axes}
    lengths = [max((hi - lo for lo, hi in pairwise(along)), default=0) for along in cuts]
    found = list(cuts)
    for axis, along in enumerate(cuts):
        nbytes = prod(lengths) * itemsize
        if axis in whole or nbytes <= most:
            continue
        thickness = max(1, lengths[axis] * most // nbytes)
        lengths[axis] = min(thickness, lengths[axis])
        found[axis] = (0, *(hi for chunk in pairwise(along) for hi in _ends(*chunk, thickness)))
    return tuple(found)


def _ends(start: int, stop: int, thickness: int) -> list[int]:
    """Return the ends of the parts of a chunk, none thicker than this."""
    parts = max(1, -(-(stop - start) // thickness))
    return [hi for _, hi in even_spans(start, stop, parts)]


def _check(
    source: Layout, target: Layout, size: int, limit: int, whole_axes: tuple[int, ...]
) -> None:
    if source.shape != target.shape:
        raise ValueError(
            f"expected source and target of one shape, got {source.shape} and {target.shape}"
        )
    check_owners("source", source, size)
    check_owners("target", target, size)
    if limit < 1:
        raise ValueError(f"expected a positive limit, got {limit}")
    for axis in whole_axes:
        if not -source.ndim <= axis < source.ndim:
            raise ValueError(f"expected whole_axes of {source.ndim} axes, got {axis}")


def check_owners(name: str, layout: Layout, size: int) -> None:
    """Raise a ValueError if an owner is neither a rank nor -1."""
    for owner in (min(layout.owners, default=-1), max(layout.owners, default=-1)):
        if not -1 <= owner < size:
            raise ValueError(f"expected owners -1 to {size - 1} in {name}, got {owner}")


def traffic(plan: RedistributePlan) -> Ints:
    """Return the bytes that each rank sends to each: ``traffic(plan)[sender, receiver]``."""
    counts = plan.copied.copy()
    np.fill_diagonal(counts, 0)
    return counts


def workspace(plan: RedistributePlan) -> int:
    """Return the most bytes of a rank beyond its source and target blocks.

    These are the message buffers of two rounds and, if ``plan.transformed``, the units of two
    rounds, without the workspace of ``read``. In two levels, a rank also has what it relays in a
    round, joined by sender and by receiver, and its own part for relays.
    """
    relayed = 2 * _relayed_in_round(plan) + plan.moves.busiest if plan.hosts else 0
    return min(2, plan.rounds) * plan.moves.busiest + relayed


def _relayed_in_round(plan: RedistributePlan) -> int:
    """Return the most bytes that a rank relays in a round."""
    moves = plan.moves
    relay = relays(plan.hosts)[moves.sender, moves.receiver]
    there = relay >= 0
    nbytes = moves.length[there] * plan.itemsize
    shape = max(1, plan.rounds), plan.size
    return int(table_of(moves.round[there], relay[there], nbytes, shape).max(initial=0))


def units_for(size: int, machine: Machine) -> int:
    """Return the units that fill a round: fewer for very many ranks on several hosts."""
    return UNITS_A_ROUND // 2 if machine.spread_over(size) and size > MANY else UNITS_A_ROUND


def buffer_bytes(share: int, spare: int, machine: Machine, *, transformed: bool = False) -> int:
    """Choose the limit of a plan: few rounds, but the first and the last are not hidden.

    ``share`` are the bytes of the array on a rank, ``spare`` the bytes for buffers beyond
    ``LEAST``. Of r rounds that take ``transfer`` together, one is exposed, and each costs a start:
    ``r * start + transfer / r`` is minimal if both terms are equal.
    """
    size = sum(machine.hosts)  # 0 on one host
    start = machine.latency + ROUND_SECONDS + size * PIECE_SECONDS
    rounds = max(1.0, sqrt(share / machine.rank_rate(size) / start))
    counted = (3 if transformed else 2) * share
    return min(max(LEAST, int(2 * counted / rounds)), LEAST + spare)


def cost(plan: RedistributePlan, machine: Machine) -> float:
    """Predict the seconds of a plan: packing and unpacking, overlapped with the transfer."""
    if not plan.rounds:
        return 0.0
    away = traffic(plan)
    sent, received = away.sum(axis=1), away.sum(axis=0)
    copied = 2 * int((sent + received + plan.copied.diagonal()).max())  # read and written
    moved = int(np.maximum(sent, received).max())
    transfer, start = transfer_seconds(away, machine), machine.latency if moved else 0.0
    if plan.hosts:
        relayed = int(relayed_bytes(away, plan.hosts).max())
        transfer += relayed / machine.bandwidth + 4 * relayed / machine.memory_bandwidth
        start = machine.collective_seconds(plan.size)
    elif machine.spread_over(plan.size):  # the latency is that of a message to each rank
        start *= int(np.count_nonzero(away, axis=1).max()) / (plan.size - 1)
    seconds = pipelined(
        copied / machine.memory_bandwidth, transfer, transfer / plan.rounds, plan.rounds
    )
    return seconds + plan.rounds * (start + ROUND_SECONDS)


def settled(held: Lengths, sizes: Sequence[int], even: Sequence[int]) -> Sequence[int]:
    """Let each block take the rank with most of it that still has room, else that of ``even``.

    ``held`` has what each rank has of each block, (blocks, ranks). No rank has more than the
    fullest of ``even``, or little more if block sizes differ much. Blocks choose in the order of
    their largest part on one rank.
    """
    if (held == held[:, :1]).all():
        return even
    load = np.zeros(held.shape[1], np.int64)
    owners = list(even)
    np.add.at(load, owners, sizes)
    room = int(load.max(initial=0))
    load[:] = 0
    for block in np.argsort(-held.max(axis=1, initial=0), kind="stable").tolist():
        fits = load + sizes[block] <= room
        if not fits.any():
            fits = load == load.min()
        mine = np.where(fits, held[block], -1)
        best = int(mine.argmax())
        owners[block] = even[block] if mine[even[block]] == mine[best] else best
        load[owners[block]] += sizes[block]
    return owners
