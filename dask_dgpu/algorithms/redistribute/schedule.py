"""One rank's work in each round, as tables of pieces."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np

from dask_dgpu.algorithms.redistribute.cells import (
    Ints,
    Mask,
    chunk_at,
    indices_at,
    table_of,
    unravel,
)
from dask_dgpu.algorithms.redistribute.plan import RedistributePlan
from dask_dgpu.algorithms.redistribute.tables import Receives, Sends, Stays
from dask_dgpu.kernels.pack import Described
from graph_opt.model.layout import Cuts, Index

T = TypeVar("T", bound=tuple[Ints, ...])
Slices = tuple[slice, ...]


class Unit(NamedTuple):
    """A source block or a slice of one: the block, the slices, and whether they are all of it."""

    block: Index
    slices: Slices
    whole: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis."""
        return tuple(part.stop - part.start for part in self.slices)


class Round(NamedTuple):
    """One round of one rank; counts are the elements of the message to or from each rank.

    ``described`` caches the pieces of sends, stays and receives for a GPU.
    """

    units: list[Unit]
    sends: Sends
    receives: Receives
    stays: Stays
    send_counts: list[int]
    receive_counts: list[int]
    described: tuple[Described, Described, Described]


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


def schedule(plan: RedistributePlan, rank: int) -> Schedule:
    """Return the work of a rank; computed once for each plan."""
    if rank not in plan.schedules:
        plan.schedules[rank] = _scheduled(plan, rank)
    found: Schedule = plan.schedules[rank]
    return found


def _scheduled(plan: RedistributePlan, rank: int) -> Schedule:
    """Return the work of a rank.

    The pieces of a message are in the order of their cells, which both sides know.
    """
    moves, target = plan.moves, plan.target
    kept = np.flatnonzero(plan.overlap.kept & (plan.overlap.sender == rank))
    pairs = zip(
        indices_at(plan.overlap.target[kept], target.grid),
        indices_at(plan.overlap.source[kept], plan.source.grid),
        strict=True,
    )
    owned = np.flatnonzero(np.array(target.owners, np.int64) == rank)
    blocks = np.setdiff1d(owned, plan.overlap.target[kept])
    units = np.flatnonzero(moves.owner == rank)
    units = units[np.argsort(moves.unit_round[units], kind="stable")]
    unit_edges = _round_edges(moves.unit_round[units], plan.rounds)
    position = np.zeros(len(moves.owner), np.int64)
    position[units] = np.arange(len(units)) - unit_edges[moves.unit_round[units]]

    mine, wanted = moves.sender == rank, moves.receiver == rank
    out = _selected(plan, mine & ~wanted, moves.receiver)
    into = _selected(plan, wanted & ~mine, moves.sender)
    own = _selected(plan, mine & wanted, moves.receiver)

    def in_unit(chosen: _Selected) -> tuple[Ints, Ints]:
        first = _starts(plan.unit_cuts, moves.places[moves.unit[chosen.pieces]])
        return position[moves.unit[chosen.pieces]], chosen.start - first

    def in_block(chosen: _Selected) -> tuple[Ints, Ints]:
        place = moves.cells.target[moves.cell[chosen.pieces]]
        return np.searchsorted(blocks, place), chosen.start - _starts(target.cuts, place)

    sends = _by_round(Sends(out.shapes, *in_unit(out), out.at), out)
    receives = _by_round(Receives(into.shapes, into.at, *in_block(into)), into)
    stays = _by_round(Stays(own.shapes, *in_unit(own), *in_block(own)), own)
    read = _units(plan, moves.places[units])
    rounds = [
        Round(
            read[unit_edges[at] : unit_edges[at + 1]],
            sends[at],
            receives[at],
            stays[at],
            out.counts[at].tolist(),
            into.counts[at].tolist(),
            (Described(), Described(), Described()),
        )
        for at in range(plan.rounds)
    ]
    return Schedule(dict(pairs), indices_at(blocks, target.grid), rounds)


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


def _selected(plan: RedistributePlan, which: Mask, peer: Ints) -> _Selected:
    moves = plan.moves
    pieces = np.flatnonzero(which)
    pieces = pieces[np.lexsort((peer[pieces], moves.round[pieces]))]
    start, shapes = moves.cells.corners(moves.cell[pieces])
    edges = _round_edges(moves.round[pieces], plan.rounds)
    stops = np.concatenate([[0], np.cumsum(moves.length[pieces])])
    at = stops[:-1] - stops[edges[moves.round[pieces]]]
    shape = plan.rounds, plan.size
    counts = table_of(moves.round[pieces], peer[pieces], moves.length[pieces], shape)
    return _Selected(pieces, start, shapes, at, edges, counts)


def _by_round(table: T, chosen: _Selected) -> list[T]:
    """Split the columns of a table by round."""
    return [
        type(table)(*(column[lo:hi] for column in table))
        for lo, hi in pairwise(chosen.edges.tolist())
    ]


def _round_edges(rounds: Ints, count: int) -> Ints:
    """Return the start of each round in ascending ``rounds``, and the end of the last."""
    return np.searchsorted(rounds, np.arange(count + 1))


def _starts(cuts: tuple[Cuts, ...], places: Ints) -> Ints:
    """Return the first position of the blocks at some places: (places, axes)."""
    index = unravel(places, tuple(len(along) - 1 for along in cuts))
    columns = [np.array(along, np.int64)[index[:, k]] for k, along in enumerate(cuts)]
    return np.stack(columns, axis=1) if columns else index


def _units(plan: RedistributePlan, places: Ints) -> list[Unit]:
    """Return the units at some places."""
    index = unravel(places, tuple(len(along) - 1 for along in plan.unit_cuts))
    blocks, firsts, lasts, whole = [], [], [], np.ones(len(places), bool)
    for k, (unit_cuts, cuts) in enumerate(zip(plan.unit_cuts, plan.source.cuts, strict=True)):
        edges, wide = np.array(unit_cuts, np.int64), np.array(cuts, np.int64)
        start, stop = edges[index[:, k]], edges[index[:, k] + 1]
        block = chunk_at(cuts, start)
        blocks.append(block.tolist())
        firsts.append((start - wide[block]).tolist())
        lasts.append((stop - wide[block]).tolist())
        whole &= (start == wide[block]) & (stop == wide[block + 1])
    return [
        Unit(
            tuple(along[at] for along in blocks),
            tuple(slice(lo[at], hi[at]) for lo, hi in zip(firsts, lasts, strict=True)),
            all_of_it,
        )
        for at, all_of_it in enumerate(whole.tolist())
    ]


def whole_block(plan: RedistributePlan, block: Index) -> Unit:
    """Return a source block as one unit."""
    return Unit(block, tuple(slice(0, n) for n in plan.source.block_shape(block)), True)
