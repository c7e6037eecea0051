"""The rank program of a redistribution: a rank's work in each round, and its messages.

::

    half 0  | round 0: out    | in   |      | round 2: out | in      |
    half 1             | round 1: out | in     |       | round 3 ...

Two rounds overlap, each in its half of one buffer: one is in transit while the next is packed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from dask_dgpu.algorithms import Array, Blocks, Progress, no_progress
from dask_dgpu.algorithms.cells import (
    Ints,
    Mask,
    Selected,
    chunk_at,
    indices_at,
    round_edges,
    unravel,
    values_at,
)
from dask_dgpu.algorithms.redistribute.plan import RedistributePlan
from dask_dgpu.comm.common import exchange
from dask_dgpu.comm.protocol import Comm, Work
from dask_dgpu.kernels import pack
from dask_dgpu.kernels.device import Device
from dask_dgpu.kernels.pack import Arrays, Described, InArrays, InMessage, Pieces
from graph_opt.model.layout import Index, grid_of, once_per_rank

Slices = tuple[slice, ...]
Place = tuple[Ints, ...]
"""Where pieces are: the number of an array and positions in it, or positions in a message."""


class Copies(NamedTuple):
    """Pieces to copy, a row for each; ``described`` caches them for the next copy."""

    shapes: Ints
    target: Place
    source: Place
    described: Described

    def pieces(self, target: Arrays | Array, source: Arrays | Array) -> Pieces:
        """Return the pieces in arrays or messages."""
        places = _within(target, self.target), _within(source, self.source)
        return Pieces(self.shapes, *places, self.described)


def _within(memory: Arrays | Array, place: Place) -> InArrays | InMessage:
    return InArrays(memory, *place) if isinstance(memory, Arrays) else InMessage(memory, *place)


class Unit(NamedTuple):
    """A source block or a slice of one."""

    block: Index
    slices: Slices

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis."""
        return tuple(part.stop - part.start for part in self.slices)


class Round(NamedTuple):
    """One round of one rank; counts are the elements of the message to or from each rank."""

    units: list[Unit]
    sends: Copies
    receives: Copies
    stays: Copies
    send_counts: list[int]
    receive_counts: list[int]


class Schedule(NamedTuple):
    """All work of one rank.

    ``kept`` has the source block of each target block that is passed on, ``blocks`` are the others.
    """

    kept: dict[Index, Index]
    blocks: list[Index]
    rounds: list[Round]


@once_per_rank
def schedule(plan: RedistributePlan, rank: int) -> Schedule:
    """Return the work of a rank.

    The pieces of a message are in the order of their cells, which both sides know.
    """
    moves, cells, overlap = plan.moves, plan.moves.cells, plan.overlap
    kept = np.flatnonzero(plan.kept & (overlap.receiver == rank))
    same = (
        indices_at(numbers[kept], layout.grid)
        for numbers, layout in ((overlap.target, plan.target), (overlap.source, plan.source))
    )
    owned = np.flatnonzero(np.array(plan.target.owners, np.int64) == rank)
    blocks = np.setdiff1d(owned, overlap.target[kept])
    units = np.flatnonzero(moves.owner == rank)
    units = units[np.argsort(moves.unit_round[units], kind="stable")]
    edges = round_edges(moves.unit_round[units], plan.rounds)
    position = np.zeros(len(moves.owner), np.int64)
    position[units] = np.arange(len(units)) - edges[moves.unit_round[units]]

    def selected(which: Mask, peer: Ints) -> Selected:
        return Selected.of(cells, which, peer, moves.round, (plan.rounds, plan.size))

    def in_unit(chosen: Selected) -> Place:
        return position[moves.unit[chosen.cells]], cells.column("start", chosen.cells)

    def in_block(chosen: Selected) -> Place:
        number = np.searchsorted(blocks, cells.target[chosen.cells])
        return number, cells.column("at", chosen.cells)

    def copies(chosen: Selected, target: Place, source: Place) -> Iterator[Copies]:
        shapes = cells.column("length", chosen.cells)
        for lo, hi in pairwise(chosen.edges.tolist()):
            into, of = (tuple(column[lo:hi] for column in place) for place in (target, source))
            yield Copies(shapes[lo:hi], into, of, Described())

    mine, wanted = cells.sender == rank, cells.receiver == rank
    out = selected(mine & ~wanted, cells.receiver)
    into = selected(wanted & ~mine, cells.sender)
    own = selected(mine & wanted, cells.receiver)
    read = _units(plan, moves.places[units])
    rounds = map(
        Round,
        (read[lo:hi] for lo, hi in pairwise(edges.tolist())),
        copies(out, (out.at,), in_unit(out)),
        copies(into, in_block(into), (into.at,)),
        copies(own, in_block(own), in_unit(own)),
        out.counts.tolist(),
        into.counts.tolist(),
    )
    return Schedule(dict(zip(*same, strict=True)), indices_at(blocks, plan.target.grid), [*rounds])


def _units(plan: RedistributePlan, numbers: Ints) -> list[Unit]:
    """Return the units of some numbers."""
    index = unravel(numbers, grid_of(plan.unit_cuts))
    start, stop = values_at(plan.unit_cuts, index), values_at(plan.unit_cuts, index + 1)
    block = np.empty_like(index)
    for k, cuts in enumerate(plan.source.cuts):
        block[:, k] = chunk_at(cuts, start[:, k])
    first = values_at(plan.source.cuts, block)
    rows = zip(block.tolist(), (start - first).tolist(), (stop - first).tolist(), strict=True)
    return [Unit(tuple(at), tuple(map(slice, lo, hi))) for at, lo, hi in rows]


Read = Callable[[Index, Slices], Array]


def redistribute_rank(
    plan: RedistributePlan,
    comm: Comm,
    device: Device,
    blocks: Blocks,
    *,
    read: Read | None = None,
    progress: Progress = no_progress,
) -> dict[Index, Array]:
    """Redistribute as one rank; ``progress`` counts rounds.

    A block that is the same on the same rank in both layouts is passed on. While a round is on its
    way, the next is read on the compute lane and packed on the transfer lane. Ranks without
    messages for each other do not wait for each other.

    Instead of ``blocks``, ``read(index, slices)`` may return the values of a part of a source
    block, of dtype ``plan.dtype`` and any strides. It is called once for each unit, on the compute
    lane. An unchanged block is one unit. Unwanted blocks are not read.
    """
    work = schedule(plan, comm.rank)

    def values(unit: Unit) -> Array:
        if read is not None:
            return read(*unit)
        part = blocks[unit.block]
        return part if unit.shape == plan.source.block_shape(unit.block) else part[unit.slices]

    with device.computing():
        before = device.mark()
        result = {
            index: values(Unit(source, tuple(slice(0, n) for n in plan.target.block_shape(index))))
            for index, source in work.kept.items()
        }
    with device.transferring():
        device.after(before)
        made = [device.empty(plan.target.block_shape(index), plan.dtype) for index in work.blocks]
        messages = _Messages(plan, comm, device, work.rounds, made)
    packed: deque[tuple[list[Array], Any]] = deque()
    under_way: Work | None = None
    for i, following in enumerate([*work.rounds, None]):
        if following is not None:
            with device.computing():
                if len(packed) == 2:
                    # the transfer lane has packed them: this lane may reuse their memory
                    device.after(packed[0][1])
                    packed.popleft()
                units = [values(unit) for unit in following.units]
                ready = device.mark()
            with device.transferring():
                device.after(ready)
                messages.pack(i, units)
                packed.append((units, device.mark()))
        with device.transferring():
            if under_way is not None:
                under_way.wait()
            under_way = messages.start(i) if following is not None else None
            if i:
                messages.unpack(i - 1)
        if i:
            progress(i, len(work.rounds))
    device.join()
    result.update(zip(work.blocks, made, strict=True))
    return result


class _Messages:
    """The message buffer of a rank, for all rounds; used on the transfer lane.

    ``targets`` are the rank's target blocks, without those that are passed on.
    """

    def __init__(
        self,
        plan: RedistributePlan,
        comm: Comm,
        device: Device,
        rounds: list[Round],
        targets: list[Array],
    ) -> None:
        self.comm, self.device, self.rounds = comm, device, rounds
        self.targets = Arrays(targets)
        self.half = max(
            (sum(step.send_counts) + sum(step.receive_counts) for step in rounds), default=0
        )
        self.buffer = device.workspace("messages", min(2, len(rounds)) * self.half, plan.dtype)

    def pack(self, at: int, units: list[Array]) -> None:
        """Copy the pieces of a round from its units into messages or target blocks."""
        step, sources = self.rounds[at], Arrays(units)
        pack.copy_pieces(
            self.device,
            step.sends.pieces(self._parts(at)[0], sources),
            step.stays.pieces(self.targets, sources),
        )

    def start(self, at: int) -> Work | None:
        """Send a round; ``None`` if there is no message."""
        out, inbox = self._parts(at)
        step = self.rounds[at]
        return exchange(self.comm, out, step.send_counts, inbox, step.receive_counts)

    def unpack(self, at: int) -> None:
        """Copy the received pieces of a round into the target blocks."""
        pieces = self.rounds[at].receives.pieces(self.targets, self._parts(at)[1])
        pack.copy_pieces(self.device, pieces)

    def _parts(self, at: int) -> tuple[Array, Array]:
        """Return the outgoing and the incoming messages of a round, adjacent in its half."""
        first = at % 2 * self.half
        middle = first + sum(self.rounds[at].send_counts)
        last = middle + sum(self.rounds[at].receive_counts)
        return self.buffer[first:middle], self.buffer[middle:last]
