"""The rank program: a halo exchange into new or into existing storage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from dask_dgpu.algorithms import Progress, no_progress
from dask_dgpu.algorithms.halo.plan import HaloPlan
from dask_dgpu.algorithms.halo.schedule import Stays, View, schedule
from dask_dgpu.algorithms.halo.storage import storage_around
from dask_dgpu.comm.protocol import Buffer, Comm, Work
from dask_dgpu.kernels import pack
from dask_dgpu.kernels.device import Device
from dask_dgpu.kernels.pack import Arrays, Described, InArrays, InMessage, Pieces
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
    copied while messages are on their way.

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
        kept = storage_around(plan, device, blocks, mine)
        extended = kept or {i: make(plan.target.block_shape(i), plan.dtype) for i in mine}
        exchange = Exchange(plan, comm, device, blocks, extended)
        exchange.start()
        if kept is None:
            exchange.copy_blocks()
        exchange.finish()
    device.join()
    progress(1, 1)
    return extended


class Exchange:
    """A halo exchange of blocks that stay where they are, to be repeated.

    Parameters
    ----------
    plan : HaloPlan
        The same on every rank.
    comm : Comm
        Joins ``plan.size`` ranks.
    device : Device
        Where this rank's arrays are; all methods are called on one of its lanes.
    blocks : mapping of tuple of int to array
        The blocks that this rank owns; they may be the middles of ``extended``.
    extended : mapping of tuple of int to array
        Where the ghost cells are filled.

    Raises
    ------
    ValueError
        When an array is not of the shape and dtype that the plan says.

    Notes
    -----
    The exchanges of one program may share the memory of messages: one is finished before
    the next starts.
    """

    def __init__(
        self, plan: HaloPlan, comm: Comm, device: Device, blocks: Blocks, extended: Blocks
    ) -> None:
        self.comm, self.device = comm, device
        self.work = work = schedule(plan, comm.rank)
        sources = [
            _checked(blocks, i, plan.layout.block_shape(i), plan.dtype) for i in work.sources
        ]
        targets = [
            _checked(extended, i, plan.target.block_shape(i), plan.dtype) for i in work.blocks
        ]
        views = Arrays(_views(plan, device, work.views, sources))
        ghosted = Arrays(targets)
        split = sum(work.send_counts)
        buffer = device.workspace("halo", split + sum(work.receive_counts), plan.dtype)
        self.out, self.inbox = buffer[:split], buffer[split:]
        sends, receives = work.sends, work.receives
        of_sends, of_receives, of_stays, of_own = work.described
        self._sends = Pieces(
            sends.shapes,
            InMessage(self.out, sends.at),
            InArrays(views, sends.view, sends.start),
            of_sends,
        )
        self._receives = Pieces(
            receives.shapes,
            InArrays(ghosted, receives.block, receives.start),
            InMessage(self.inbox, receives.at),
            of_receives,
        )
        self._stays = _staying(work.stays, views, ghosted, of_stays)
        self._own = _staying(work.own, views, ghosted, of_own)
        self._under_way: Work | None = None

    @property
    def travels(self) -> bool:
        """Whether this rank waits for others."""
        return bool(len(self.inbox))

    def start(self) -> None:
        """Send what others need, and fill ghost cells from this rank's own blocks."""
        pack.copy_pieces(self.device, self._sends, self._stays)
        sends = list(self._messages(self.out, self.work.send_counts, 1))
        receives = list(self._messages(self.inbox, self.work.receive_counts, -1))
        if sends or receives:
            self._under_way = self.comm.exchange(sends, receives)

    def copy_blocks(self) -> None:
        """Copy the blocks themselves, which are not the middles of the extended ones."""
        pack.copy_pieces(self.device, self._own)

    def finish(self) -> None:
        """Fill ghost cells with what others have sent."""
        if self._under_way is not None:
            self._under_way.wait()
            self._under_way = None
            pack.copy_pieces(self.device, self._receives)

    def _messages(
        self, buffer: Array, counts: Sequence[int], way: int
    ) -> Iterator[tuple[int, Buffer]]:
        """Each rank's message, beginning with a neighbour, lest all call on rank 0 first."""
        stops = list(accumulate(counts))
        for step in range(1, self.comm.size):
            peer = (self.comm.rank + way * step) % self.comm.size
            if counts[peer]:
                yield peer, buffer[stops[peer] - counts[peer] : stops[peer]]


def _staying(stays: Stays, views: Arrays, ghosted: Arrays, described: Described) -> Pieces:
    return Pieces(
        stays.shapes,
        InArrays(ghosted, stays.block, stays.start),
        InArrays(views, stays.view, stays.view_start),
        described,
    )


def _checked(blocks: Blocks, index: Index, shape: tuple[int, ...], dtype: str) -> Array:
    block = blocks[index]
    if block.shape != shape or block.dtype != np.dtype(dtype):
        raise ValueError(
            f"block {index} is {block.dtype} of shape {block.shape}, the plan has {dtype} of "
            f"shape {shape}"
        )
    return block


def _views(
    plan: HaloPlan, device: Device, views: Sequence[View], sources: Sequence[Array]
) -> list[Array]:
    """Return what the cells are parts of."""
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
    """Return the constant beyond an axis as an array that is large enough for any cell."""
    value = np.asarray(plan.boundary[axis]).astype(plan.dtype)
    lengths = [max(each.lengths, default=0) for each in plan.axes]
    return np.broadcast_to(device.constant(value), lengths)
