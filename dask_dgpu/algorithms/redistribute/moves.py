"""The pieces of a redistribution on all ranks, as arrays."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dask_dgpu.algorithms.redistribute.cells import (
    Cells,
    Ints,
    Mask,
    chunk_at,
    row_major,
    table_of,
    volumes,
)
from dask_dgpu.algorithms.redistribute.deal import deal
from graph_opt.model.layout import Layout

if TYPE_CHECKING:
    from dask_dgpu.algorithms.redistribute.plan import RedistributePlan


class Overlap(NamedTuple):
    """All pairs of a source block and a target block that overlap.

    Attributes
    ----------
    source, target : array of int
        Their places in row-major order.
    sender, receiver : array of int
        Their ranks, -1 for none.
    length : array of int
        Number of common elements.
    whole : array of bool
        Whether both are the same block.
    """

    source: Ints
    target: Ints
    sender: Ints
    receiver: Ints
    length: Ints
    whole: Mask

    @property
    def kept(self) -> Mask:
        """Pairs of the same block on the same rank, which is passed on."""
        return self.whole & (self.sender == self.receiver) & (self.sender >= 0)

    def traffic(self, size: int) -> Ints:
        """Return the elements that rank p has of the blocks of rank q, without kept blocks."""
        moves = (self.sender >= 0) & (self.receiver >= 0) & ~self.kept
        return table_of(self.sender[moves], self.receiver[moves], self.length[moves], (size, size))


def overlap(source: Layout, target: Layout) -> Overlap:
    """Compare the blocks of two layouts of an array."""
    cells = Cells(source.cuts, target.cuts)
    sizes = [volumes([np.diff(cuts) for cuts in layout.cuts]) for layout in (source, target)]
    whole = (sizes[0][cells.source] == cells.sizes) & (sizes[1][cells.target] == cells.sizes)
    sender = np.array(source.owners, np.int64)[cells.source]
    receiver = np.array(target.owners, np.int64)[cells.target]
    return Overlap(cells.source, cells.target, sender, receiver, cells.sizes, whole)


class Moves:
    """The pieces of a redistribution, their units, and their rounds.

    A *unit* is a source block or a slice of one, a *piece* the overlap of a unit with a target
    block. Every rank computes the same, so no counts are exchanged.

    Attributes
    ----------
    cells : Cells
        Overlaps of units and target blocks.
    cell, unit, sender, receiver, length, round : array of int
        The cell, unit, ranks, number of elements and round of each piece.
    places, owner, unit_round : array of int
        The place of each unit among all units in row-major order, its rank and its round.
    rounds : int
        Number of rounds.
    busiest : int
        Most bytes of a rank in a round.
    """

    def __init__(self, plan: RedistributePlan) -> None:
        source, target = plan.source, plan.target
        blocks = overlap(source, target)
        kept = np.zeros(len(source.owners), bool)
        kept[blocks.source[blocks.kept]] = True
        self.cells = cells = Cells(plan.unit_cuts, target.cuts)
        starts = [axis.start for axis in cells.axes]
        chunks = [chunk_at(*pair) for pair in zip(source.cuts, starts, strict=True)]
        block = row_major(chunks, source.grid)
        receivers = np.array(target.owners, np.int64)[cells.target]
        self.cell = np.flatnonzero((receivers >= 0) & ~kept[block])
        self.sender = np.array(source.owners, np.int64)[block[self.cell]]
        self.receiver = receivers[self.cell]
        self.length = cells.sizes[self.cell]
        place = cells.source[self.cell]
        used = np.zeros(math.prod(len(cuts) - 1 for cuts in plan.unit_cuts), bool)
        used[place] = True  # np.unique would sort millions of pieces
        self.places = np.flatnonzero(used)
        self.unit = (np.cumsum(used) - 1)[place]
        self.owner = np.zeros(len(self.places), np.int64)
        self.owner[self.unit] = self.sender
        shape = len(self.places), plan.size
        sent = table_of(self.unit, self.receiver, self.length * plan.itemsize, shape)
        self.unit_round, self.rounds, self.busiest = deal(
            self.owner, sent, plan.limit, transformed=plan.transformed
        )
        self.round = self.unit_round[self.unit]
