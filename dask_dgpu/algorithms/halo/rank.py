"""The rank program: a halo exchange into new or into existing storage.

The result of a function of an extended block has the same size, and is trimmed. The next
exchange can fill the ghost cells around the trimmed block without copying it, so a loop keeps
its storage from step to step. This must be invisible: nothing else may refer to the block, or to
the memory around it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dask_dgpu.algorithms import Array, Blocks, Progress, no_progress
from dask_dgpu.algorithms.cells import Ints, Selected, indices_at, unravel, values_at
from dask_dgpu.algorithms.halo.plan import Assembly, HaloPlan
from dask_dgpu.algorithms.redistribute.rank import Copies, Place
from dask_dgpu.comm.common import exchange
from dask_dgpu.comm.protocol import Comm, Work
from dask_dgpu.kernels import pack
from dask_dgpu.kernels.device import Device
from dask_dgpu.kernels.pack import Arrays, Described
from graph_opt.model.layout import Index, once_per_rank


class View(NamedTuple):
    """A view of a source block in which every cell is a plain part.

    ``block`` is its place among the rank's blocks; before them are the constants of the axes. Along
    each axis it is read forwards (1, 0), backwards (-1, 0), or at one repeated position
    (0, position); constants have no directions.
    """

    block: int
    turns: tuple[tuple[int, int], ...]


class Schedule(NamedTuple):
    """All work of one rank: its blocks, and those to extend.

    Cells are for and from other ranks, or stay: ghost cells from its own blocks or constants, and
    the blocks themselves, its ``own``. Counts are elements of the message to and from each rank.
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
    rounds, shape = np.zeros(len(mine), np.int64), (1, plan.size)
    out = Selected.of(cells, mine & ~here, cells.receiver, rounds, shape)
    into = Selected.of(cells, here & ~mine, cells.sender, rounds, shape)
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
        copies(out.cells, target=(out.at,)),
        copies(into.cells, source=(into.at,)),
        copies(ghosts),
        copies(own),
    )
    blocks = indices_at(owned, plan.layout.grid)
    extended = indices_at(wanted, plan.target.grid)
    counts = out.counts[0].tolist(), into.counts[0].tolist()
    return Schedule(blocks, extended, list(views), *work, *counts)


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
    places = []
    for block, *turns in zip(place.tolist(), step.tolist(), fixed.tolist(), strict=True):
        view = View(block, tuple(zip(*turns, strict=True)) if block >= layout.ndim else ())
        places.append(views.setdefault(view, len(views)))
    return np.array(places, np.int64), at


def halo_rank(
    plan: HaloPlan,
    comm: Comm,
    device: Device,
    blocks: Blocks,
    *,
    progress: Progress = no_progress,
) -> dict[Index, Array]:
    """Extend blocks by their ghost cells as one rank.

    The result is in the memory around the blocks, if it fits there and only ``blocks`` refers
    to them. Blocks are copied while messages are in transit.
    """
    with device.computing():
        given = device.mark()
    with device.transferring():
        device.after(given)
        mine = schedule(plan, comm.rank).blocks
        existing = _storage_around(plan, device, blocks, mine)
        extended = existing or {
            i: device.empty(plan.target.block_shape(i), plan.dtype) for i in mine
        }
        ghosts = Exchange(plan, comm, device, blocks, extended)
        ghosts.start()
        if existing is None:
            ghosts.copy_blocks()
        ghosts.finish()
    device.join()
    progress(1, 1)
    return extended


class Exchange:
    """A halo exchange of blocks in place, which can be repeated.

    All methods are called on one lane of the device. ``blocks`` may be the middles of ``extended``,
    whose ghost cells are filled. Exchanges of one ``name`` share the memory of messages: one
    finishes before the next starts.
    """

    def __init__(
        self,
        plan: Assembly,
        comm: Comm,
        device: Device,
        blocks: Blocks,
        extended: Blocks,
        name: str = "halo",
    ) -> None:
        self.comm, self.device = comm, device
        self.work = work = schedule(plan, comm.rank)
        views = Arrays(_views(plan, device, work.views, [blocks[i] for i in work.sources]))
        ghosted = Arrays([extended[i] for i in work.blocks])
        split = sum(work.send_counts)
        buffer = device.workspace(name, split + sum(work.receive_counts), plan.dtype)
        self.out, self.inbox = buffer[:split], buffer[split:]
        self._sends = work.sends.pieces(self.out, views)
        self._receives = work.receives.pieces(ghosted, self.inbox)
        self._stays = work.stays.pieces(ghosted, views)
        self._own = work.own.pieces(ghosted, views)
        self._under_way: Work | None = None

    @property
    def travels(self) -> bool:
        """Whether this rank receives anything."""
        return bool(len(self.inbox))

    def start(self) -> None:
        """Send cells to other ranks, and fill ghost cells from this rank's own blocks."""
        pack.copy_pieces(self.device, self._sends, self._stays)
        work = self.work
        self._under_way = exchange(
            self.comm, self.out, work.send_counts, self.inbox, work.receive_counts
        )

    def copy_blocks(self) -> None:
        """Copy the blocks themselves, if they are not the middles of the extended ones."""
        pack.copy_pieces(self.device, self._own)

    def finish(self) -> None:
        """Fill ghost cells with the received messages."""
        if self._under_way is not None:
            self._under_way.wait()
            self._under_way = None
            pack.copy_pieces(self.device, self._receives)


def _views(
    plan: Assembly, device: Device, views: Sequence[View], sources: Sequence[Array]
) -> list[Array]:
    """Return the views that contain the cells."""
    ndim = plan.layout.ndim
    covers = []
    for block, turns in views:
        if block < ndim:
            covers.append(_constant(plan, device, block))
            continue
        view = sources[block - ndim]
        for axis, (step, at) in enumerate(turns):
            lead = (slice(None),) * axis
            if step < 0:
                view = view[(*lead, slice(None, None, -1))]
            elif step == 0:
                repeated = (*view.shape[:axis], max(plan.depth[axis]), *view.shape[axis + 1 :])
                view = np.broadcast_to(view[(*lead, slice(at, at + 1))], repeated)
        covers.append(view)
    return covers


def _constant(plan: Assembly, device: Device, axis: int) -> Array:
    """Return the constant beyond an axis as an array as large as any cell."""
    value = np.asarray(plan.boundary[axis]).astype(plan.dtype)
    lengths = [int(np.diff(cuts).max(initial=0)) for cuts in plan.target.cuts]
    return np.broadcast_to(device.constant(value), lengths)


def _storage_around(
    plan: HaloPlan, device: Device, blocks: Blocks, wanted: Sequence[Index]
) -> dict[Index, Array] | None:
    """Return the memory around the wanted blocks, shaped as extended blocks.

    None unless each wanted block has such memory, and only the mapping ``blocks`` refers to it.
    """
    storage = {}
    for index in wanted:
        if index not in blocks or _references(blocks, index) != ALONE:
            return None
        whole = blocks[index].base
        if not device.owns(whole) or not _is_middle(plan, index, blocks[index], whole):
            return None
        storage[index] = whole
    return storage


def _references(blocks: Blocks, index: Index) -> tuple[int, int]:
    """Count the references to a block, and to the memory of which it is a view."""
    block = blocks[index]
    whole = block.base
    return sys.getrefcount(block), sys.getrefcount(whole)


ALONE = _references({(): np.empty(2)[1:]}, ())
"""The counts if the view in its mapping is the only reference."""


def _is_middle(plan: HaloPlan, index: Index, block: Array, whole: Array) -> bool:
    """Whether a block is at its place in its extended block."""
    if whole.shape != plan.target.block_shape(index) or whole.dtype != block.dtype:
        return False

    def place(array: Array) -> tuple[Any, ...]:
        kind = "" if isinstance(array, np.ndarray) else "cuda_"
        data = getattr(array, f"__{kind}array_interface__")["data"]
        return data, array.shape, array.strides

    return whole.flags.c_contiguous and place(block) == place(whole[plan.interior(index)])
