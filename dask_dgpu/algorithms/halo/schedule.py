"""One rank's work in a halo exchange, as tables of pieces."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dask_dgpu.algorithms.halo.cells import Assembly
from dask_dgpu.algorithms.redistribute.moves import Ints, Mask, indices_at, unravel, values_at
from dask_dgpu.algorithms.redistribute.schedule import Copies, Place, once_per_rank
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
    sends, receives : Copies
        Cells for and from other ranks.
    stays, own : Copies
        Ghost cells from its own blocks or constants; the blocks themselves.
    send_counts, receive_counts : list of int
        Elements of the message to and from each rank.
    """

    sources: list[Index]
    blocks: list[Index]
    views: list[View]
    sends: Copies
    receives: Copies
    stays: Copies
    own: Copies
    send_counts: list[int]
    receive_counts: list[int]


@once_per_rank
def schedule(plan: Assembly, rank: int) -> Schedule:
    """Return the work of a rank; both sides of a message know the order of its cells."""
    cells = plan.cells
    owned, wanted = (
        np.flatnonzero(np.array(layout.owners, np.int64) == rank)
        for layout in (plan.layout, plan.target)
    )
    mine, here = cells.sender == rank, cells.receiver == rank
    out, send_counts, out_at = _message(plan, mine & ~here, cells.receiver)
    into, receive_counts, into_at = _message(plan, here & ~mine, cells.sender)
    ghosts = np.flatnonzero(mine & here & cells.ghost)
    own = np.flatnonzero(mine & here & ~cells.ghost)
    views: dict[View, int] = {}

    def copies(which: Ints, target: Place | None = None, source: Place | None = None) -> Copies:
        if target is None:
            target = np.searchsorted(wanted, cells.target[which]), cells.column("at", which)
        if source is None:
            source = _in_views(plan, which, owned, views)
        return Copies(cells.column("length", which), target, source, Described())

    work = (
        copies(out, target=(out_at,)),
        copies(into, source=(into_at,)),
        copies(ghosts),
        copies(own),
    )
    blocks = indices_at(owned, plan.layout.grid)
    extended = indices_at(wanted, plan.target.grid)
    return Schedule(blocks, extended, list(views), *work, send_counts, receive_counts)


def _message(plan: Assembly, chosen: Mask, peer: Ints) -> tuple[Ints, list[int], Ints]:
    """Return cells by peer, the elements of each peer's message, and the start of each cell."""
    cells = plan.cells
    which = np.flatnonzero(chosen)
    which = which[np.argsort(peer[which], kind="stable")]
    lengths = cells.length[which]
    counts = np.bincount(peer[which], lengths, plan.size).astype(np.int64)
    return which, counts.tolist(), np.cumsum(lengths) - lengths


def _in_views(plan: Assembly, which: Ints, owned: Ints, views: dict[View, int]) -> Place:
    """Return the view of each cell, and the position of its first element there.

    New views are numbered in ``views``; ``owned`` are the rank's blocks.
    """
    cells, layout = plan.cells, plan.layout
    source, constant = cells.source[which], cells.constant[which]
    step, start = cells.column("step", which), cells.column("start", which)
    index = unravel(np.maximum(source, 0), layout.grid)
    last = values_at(map(np.diff, layout.cuts), index) - 1
    at = np.where(step == 0, 0, np.where(step > 0, start, last - start))
    at[constant >= 0] = 0
    fixed = np.where(step == 0, start, 0)
    place = np.where(constant >= 0, constant, layout.ndim + np.searchsorted(owned, source))
    found = []
    for block, *turns in zip(place.tolist(), step.tolist(), fixed.tolist(), strict=True):
        view = View(block, tuple(zip(*turns, strict=True)) if block >= layout.ndim else ())
        found.append(views.setdefault(view, len(views)))
    return np.array(found, np.int64), at
