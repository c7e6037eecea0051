"""The rank program: a halo exchange into new or into existing storage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dask_dgpu.algorithms import Progress, no_progress
from dask_dgpu.algorithms.halo.plan import HaloPlan
from dask_dgpu.algorithms.halo.schedule import View, schedule
from dask_dgpu.algorithms.halo.storage import storage_around
from dask_dgpu.algorithms.redistribute.message import messages_of
from dask_dgpu.algorithms.redistribute.rank import checked
from dask_dgpu.comm.protocol import Comm, Work
from dask_dgpu.kernels import pack
from dask_dgpu.kernels.device import Device
from dask_dgpu.kernels.pack import Arrays
from graph_opt.model.layout import Index

Array = Any
Blocks = Mapping[Index, Array]


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
    to them. Without ``plan.corners``, ghost cells beyond several axes are zero. Blocks are
    copied while messages are in transit.

    Raises
    ------
    ValueError
        If a block has another shape or dtype than the plan.
    """
    with device.computing():
        given = device.mark()
    with device.transferring():
        device.after(given)
        make = device.empty if plan.corners else device.zeros
        mine = schedule(plan, comm.rank).blocks
        existing = storage_around(plan, device, blocks, mine)
        extended = existing or {i: make(plan.target.block_shape(i), plan.dtype) for i in mine}
        exchange = Exchange(plan, comm, device, blocks, extended)
        exchange.start()
        if existing is None:
            exchange.copy_blocks()
        exchange.finish()
    device.join()
    progress(1, 1)
    return extended


class Exchange:
    """A halo exchange of blocks in place, which can be repeated.

    All methods are called on one lane of the device. ``blocks`` may be the middles of ``extended``,
    whose ghost cells are filled. The exchanges of one program may share the memory of messages: one
    finishes before the next starts.

    Raises
    ------
    ValueError
        If an array has another shape or dtype than the plan.
    """

    def __init__(
        self, plan: HaloPlan, comm: Comm, device: Device, blocks: Blocks, extended: Blocks
    ) -> None:
        self.comm, self.device = comm, device
        self.work = work = schedule(plan, comm.rank)
        sources = [
            checked(blocks[i], f"block {i}", plan.layout.block_shape(i), plan.dtype)
            for i in work.sources
        ]
        targets = [
            checked(extended[i], f"block {i}", plan.target.block_shape(i), plan.dtype)
            for i in work.blocks
        ]
        views = Arrays(_views(plan, device, work.views, sources))
        ghosted = Arrays(targets)
        split = sum(work.send_counts)
        buffer = device.workspace("halo", split + sum(work.receive_counts), plan.dtype)
        self.out, self.inbox = buffer[:split], buffer[split:]
        of_sends, of_receives, of_stays, of_own = work.described
        self._sends = work.sends.pieces(self.out, views, of_sends)
        self._receives = work.receives.pieces(self.inbox, ghosted, of_receives)
        self._stays = work.stays.pieces(views, ghosted, of_stays)
        self._own = work.own.pieces(views, ghosted, of_own)
        self._under_way: Work | None = None

    @property
    def travels(self) -> bool:
        """Whether this rank receives anything."""
        return bool(len(self.inbox))

    def start(self) -> None:
        """Send cells to other ranks, and fill ghost cells from this rank's own blocks."""
        pack.copy_pieces(self.device, self._sends, self._stays)
        sends = messages_of(self.comm, self.out, self.work.send_counts, 1)
        receives = messages_of(self.comm, self.inbox, self.work.receive_counts, -1)
        if sends or receives:
            self._under_way = self.comm.exchange(sends, receives)

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
    plan: HaloPlan, device: Device, views: Sequence[View], sources: Sequence[Array]
) -> list[Array]:
    """Return the views that contain the cells."""
    ndim = plan.layout.ndim
    found = []
    for block, turns in views:
        if block < ndim:
            found.append(_constant(plan, device, block))
            continue
        view = sources[block - ndim]
        for axis, (step, at) in enumerate(turns):
            lead = (slice(None),) * axis
            if step < 0:
                view = view[(*lead, slice(None, None, -1))]
            elif step == 0:
                repeated = (*view.shape[:axis], max(plan.depth[axis]), *view.shape[axis + 1 :])
                view = np.broadcast_to(view[(*lead, slice(at, at + 1))], repeated)
        found.append(view)
    return found


def _constant(plan: HaloPlan, device: Device, axis: int) -> Array:
    """Return the constant beyond an axis as an array as large as any cell."""
    value = np.asarray(plan.boundary[axis]).astype(plan.dtype)
    lengths = [max(each.lengths, default=0) for each in plan.axes]
    return np.broadcast_to(device.constant(value), lengths)
