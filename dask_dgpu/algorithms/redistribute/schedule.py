"""One rank's work in each round, as tables of pieces."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dask_dgpu.algorithms.redistribute.moves import (
    Ints,
    Mask,
    chunk_at,
    grid_of,
    indices_at,
    table_of,
    unravel,
    values_at,
)
from dask_dgpu.algorithms.redistribute.plan import RedistributePlan
from dask_dgpu.kernels.pack import Arrays, Described, InArrays, InMessage, Pieces
from graph_opt.model.layout import Cuts, Index

Array = Any
P = TypeVar("P")
R = TypeVar("R")
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

    Attributes
    ----------
    kept : dict of tuple of int to tuple of int
        The source block of each target block that is passed on.
    blocks : list of tuple of int
        The other target blocks.
    rounds : list of Round
        In order.
    """

    kept: dict[Index, Index]
    blocks: list[Index]
    rounds: list[Round]


def once_per_rank(function: Callable[[P, int], R]) -> Callable[[P, int], R]:
    """Let the plan, which is ``Bare``, keep the result of ``function(plan, rank)``."""

    @wraps(function)
    def cached(plan: P, rank: int) -> R:
        known: dict[int, R] = vars(plan).setdefault("_scheduled", {})
        if rank not in known:
            known[rank] = function(plan, rank)
        return known[rank]

    return cached


@once_per_rank
def schedule(plan: RedistributePlan, rank: int) -> Schedule:
    """Return the work of a rank.

    The pieces of a message are in the order of their cells, which both sides know.
    """
    moves, source, target = plan.moves, plan.source, plan.target
    kept = np.flatnonzero(plan.overlap.kept & (plan.overlap.sender == rank))
    same = (
        indices_at(numbers[kept], layout.grid)
        for numbers, layout in ((plan.overlap.target, target), (plan.overlap.source, source))
    )
    owned = np.flatnonzero(np.array(target.owners, np.int64) == rank)
    blocks = np.setdiff1d(owned, plan.overlap.target[kept])
    units = np.flatnonzero(moves.owner == rank)
    units = units[np.argsort(moves.unit_round[units], kind="stable")]
    edges = _round_edges(moves.unit_round[units], plan.rounds)
    position = np.zeros(len(moves.owner), np.int64)
    position[units] = np.arange(len(units)) - edges[moves.unit_round[units]]

    mine, wanted = moves.sender == rank, moves.receiver == rank
    out = _Selected.of(plan, mine & ~wanted, moves.receiver)
    into = _Selected.of(plan, wanted & ~mine, moves.sender)
    own = _Selected.of(plan, mine & wanted, moves.receiver)

    def in_unit(chosen: _Selected) -> Place:
        unit = moves.unit[chosen.pieces]
        return position[unit], chosen.start - _starts(plan.unit_cuts, moves.places[unit])

    def in_block(chosen: _Selected) -> Place:
        number = moves.cells.target[moves.cell[chosen.pieces]]
        return np.searchsorted(blocks, number), chosen.start - _starts(target.cuts, number)

    read = _units(plan, moves.places[units])
    rounds = map(
        Round,
        (read[lo:hi] for lo, hi in pairwise(edges.tolist())),
        out.by_round((out.at,), in_unit(out)),
        into.by_round(in_block(into), (into.at,)),
        own.by_round(in_block(own), in_unit(own)),
        out.counts.tolist(),
        into.counts.tolist(),
    )
    return Schedule(dict(zip(*same, strict=True)), indices_at(blocks, target.grid), list(rounds))


class _Selected(NamedTuple):
    """Some pieces, by round, then by peer, then by cell.

    ``start`` is a position in the array, ``at`` one in the round's message.
    """

    pieces: Ints
    start: Ints
    shapes: Ints
    at: Ints
    edges: Ints
    counts: Ints

    @classmethod
    def of(cls, plan: RedistributePlan, which: Mask, peer: Ints) -> _Selected:
        moves = plan.moves
        pieces = np.flatnonzero(which)
        pieces = pieces[np.lexsort((peer[pieces], moves.round[pieces]))]
        rounds, lengths = moves.round[pieces], moves.length[pieces]
        edges = _round_edges(rounds, plan.rounds)
        stops = np.concatenate([[0], np.cumsum(lengths)])
        at = stops[:-1] - stops[edges[rounds]]
        counts = table_of(rounds, peer[pieces], lengths, (plan.rounds, plan.size))
        return cls(pieces, *moves.cells.corners(moves.cell[pieces]), at, edges, counts)

    def by_round(self, target: Place, source: Place) -> list[Copies]:
        """Return the copies of each round."""
        return [
            Copies(
                self.shapes[lo:hi],
                tuple(column[lo:hi] for column in target),
                tuple(column[lo:hi] for column in source),
                Described(),
            )
            for lo, hi in pairwise(self.edges.tolist())
        ]


def _round_edges(rounds: Ints, count: int) -> Ints:
    """Return the start of each round in ascending ``rounds``, and the end of the last."""
    return np.searchsorted(rounds, np.arange(count + 1))


def _starts(cuts: tuple[Cuts, ...], numbers: Ints) -> Ints:
    """Return the first position of some blocks: (blocks, axes)."""
    return values_at(cuts, unravel(numbers, grid_of(cuts)))


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
