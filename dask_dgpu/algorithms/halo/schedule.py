"""One rank's work in a halo exchange, as tables of pieces."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dask_dgpu.algorithms.halo.plan import HaloPlan
from dask_dgpu.algorithms.redistribute.cells import Ints, Mask, indices_at, unravel
from dask_dgpu.algorithms.redistribute.tables import Receives, Sends, Stays
from dask_dgpu.kernels.pack import Described
from graph_opt.model.layout import Index


class View(NamedTuple):
    """A view of a source block in which every cell is a plain part.

    ``block`` is its place among the rank's blocks; before them are the constants of the axes. Along
    each axis it is read forwards (1, 0), backwards (-1, 0), or at one repeated position
    (0, position); constants have no directions.
    """

    block: int
    turns: tuple[tuple[int, int], ...]


class Schedule(NamedTuple):
    """All work of one rank.

    Attributes
    ----------
    sources, blocks : list of tuple of int
        Its blocks, and those to extend.
    views : list of View
        The views for reading.
    sends, receives : Sends, Receives
        Cells for and from other ranks.
    stays, own : Stays
        Ghost cells from its own blocks or constants; the blocks themselves.
    send_counts, receive_counts : list of int
        Elements of the message to and from each rank.
    described : tuple of Described
        Cached descriptions of sends, receives, stays and own for the next exchange.
    """

    sources: list[Index]
    blocks: list[Index]
    views: list[View]
    sends: Sends
    receives: Receives
    stays: Stays
    own: Stays
    send_counts: list[int]
    receive_counts: list[int]
    described: tuple[Described, Described, Described, Described]


def schedule(plan: HaloPlan, rank: int) -> Schedule:
    """Return the work of a rank; computed once for each plan."""
    if rank not in plan.schedules:
        plan.schedules[rank] = _scheduled(plan, rank)
    found: Schedule = plan.schedules[rank]
    return found


def _scheduled(plan: HaloPlan, rank: int) -> Schedule:
    """Return the work of a rank; both sides of a message know the order of its cells."""
    cells = plan.cells
    owned = np.flatnonzero(np.array(plan.layout.owners, np.int64) == rank)
    wanted = np.flatnonzero(np.array(plan.target.owners, np.int64) == rank)
    mine, here = cells.sender == rank, cells.receiver == rank
    out, send_counts, out_at = _message(plan, mine & ~here, cells.receiver)
    into, receive_counts, into_at = _message(plan, here & ~mine, cells.sender)
    reading = _Reading(plan, owned)

    def stays(chosen: Mask) -> Stays:
        which = np.flatnonzero(chosen)
        shapes, block = cells.column("length", which), np.searchsorted(wanted, cells.target[which])
        return Stays(shapes, *reading.views_of(which), block, cells.column("at", which))

    sends = Sends(cells.column("length", out), *reading.views_of(out), out_at)
    receives = Receives(
        cells.column("length", into),
        into_at,
        np.searchsorted(wanted, cells.target[into]),
        cells.column("at", into),
    )
    ghosts, own = stays(mine & here & cells.ghost), stays(mine & here & ~cells.ghost)
    return Schedule(
        indices_at(owned, plan.layout.grid),
        indices_at(wanted, plan.layout.grid),
        list(reading.views),
        sends,
        receives,
        ghosts,
        own,
        send_counts,
        receive_counts,
        (Described(), Described(), Described(), Described()),
    )


def _message(plan: HaloPlan, chosen: Mask, peer: Ints) -> tuple[Ints, list[int], Ints]:
    """Return cells by peer, the elements of each peer's message, and the start of each cell."""
    cells = plan.cells
    which = np.flatnonzero(chosen)
    which = which[np.argsort(peer[which], kind="stable")]
    lengths = cells.length[which]
    counts = np.bincount(peer[which], lengths, plan.size).astype(np.int64)
    return which, counts.tolist(), np.cumsum(lengths) - lengths


class _Reading:
    """The views for a rank's cells."""

    def __init__(self, plan: HaloPlan, owned: Ints) -> None:
        self.plan, self.owned = plan, owned
        self.views: dict[View, int] = {}

    def views_of(self, which: Ints) -> tuple[Ints, Ints]:
        """Return the view of each cell, and the position of its first element there."""
        plan, cells = self.plan, self.plan.cells
        source, constant = cells.source[which], cells.constant[which]
        step, start = cells.column("step", which), cells.column("start", which)
        lengths = self._block_lengths(source)
        at = np.where(step == 0, 0, np.where(step > 0, start, lengths - 1 - start))
        at[constant >= 0] = 0
        fixed = np.where(step == 0, start, 0)
        place = np.where(
            constant >= 0, constant, plan.layout.ndim + np.searchsorted(self.owned, source)
        )
        found = []
        for block, steps, positions in zip(
            place.tolist(), step.tolist(), fixed.tolist(), strict=True
        ):
            turns = tuple(zip(steps, positions, strict=True))
            view = View(block, turns if block >= plan.layout.ndim else ())
            found.append(self.views.setdefault(view, len(self.views)))
        return np.array(found, np.int64), at

    def _block_lengths(self, places: Ints) -> Ints:
        cuts = self.plan.layout.cuts
        index = unravel(np.maximum(places, 0), self.plan.layout.grid)
        columns = [np.diff(np.array(along))[index[:, k]] for k, along in enumerate(cuts)]
        return np.stack(columns, axis=1) if columns else index
