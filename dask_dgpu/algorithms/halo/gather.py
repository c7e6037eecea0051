"""Boxes of an array, each assembled on a rank from parts of other ranks' blocks.

Unlike blocks of a layout, boxes may overlap: windows, or copies of the whole array.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dask_dgpu.algorithms import Array, Blocks
from dask_dgpu.algorithms.cells import Axis
from dask_dgpu.algorithms.halo.plan import Assembly
from dask_dgpu.algorithms.halo.rank import Exchange
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import Device
from graph_opt.model.layout import Index, Layout, cuts_of, overlaps
from graph_opt.model.window import Window

Slices = tuple[slice, ...]


@dataclass(frozen=True, kw_only=True)
class GatherPlan(Assembly):
    """Boxes under each block of a grid, each the product of a window of each axis.

    A box may overlap others, and has an owner or none: -1. Zeros within a window are left to the
    caller.
    """

    windows: tuple[tuple[Window, ...], ...]
    owners: tuple[int, ...]

    @cached_property
    def axes(self) -> list[Axis]:
        """The segments of each axis: chunk by chunk under each window."""
        kept = []
        for cuts, windows in zip(self.layout.cuts, self.windows, strict=True):
            rows = [
                (i, window.before + lo - window.start, hi - lo, chunk, lo - cuts[chunk], 1, 0)
                for i, window in enumerate(windows)
                for chunk, lo, hi in overlaps(cuts, window.start, window.stop)
            ]
            kept.append(Axis.of(rows))
        return kept

    @cached_property
    def target(self) -> Layout:
        """The boxes, as if they were adjacent in an array."""
        lengths = ([window.length for window in windows] for windows in self.windows)
        return Layout(tuple(map(cuts_of, lengths)), self.owners)

    def inside(self, index: Index) -> Slices:
        """Return the part of a box that is no zeros."""
        box = [windows[at] for windows, at in zip(self.windows, index, strict=True)]
        return tuple(slice(each.before, each.length - each.after) for each in box)

    def within_blocks(self, tiles: Layout) -> dict[Index, tuple[Index, Slices]]:
        """Return the boxes of tiles within one block of their rank: the block, and the place."""
        spans = {}
        for index, owner in zip(tiles.indices(), tiles.owners, strict=True):
            box = [windows[at] for windows, at in zip(self.windows, index, strict=True)]
            pairs = zip(self.layout.cuts, box, strict=True)
            under = [list(overlaps(cuts, each.start, each.stop)) for cuts, each in pairs]
            if owner < 0 or any(len(chunks) != 1 for chunks in under):
                continue
            block = tuple(chunk for ((chunk, _, _),) in under)
            rows = zip(self.layout.cuts, under, strict=True)
            place = (slice(lo - cuts[at], hi - cuts[at]) for cuts, ((at, lo, hi),) in rows)
            if self.layout.owner(block) == owner:
                spans[index] = block, tuple(place)
        return spans


def whole_on(layout: Layout, ranks: Sequence[bool], dtype: str) -> GatherPlan:
    """Plan a copy of a whole array for some ranks, without those that own its only block.

    Box r, along the first axis, is that of rank r.
    """
    owner = layout.owners[0] if len(layout.owners) == 1 else -1
    owners = tuple(rank if wanted and rank != owner else -1 for rank, wanted in enumerate(ranks))
    first, *others = (Window(0, length) for length in layout.shape)
    windows = ((first,) * len(ranks), *((other,) for other in others))
    return GatherPlan(layout, dtype, len(ranks), windows=windows, owners=owners)


class Gathered:
    """Boxes under assembly, on the transfer lane: their messages are in transit."""

    def __init__(
        self, plan: GatherPlan, comm: Comm, device: Device, blocks: Blocks, name: str
    ) -> None:
        self.plan, self._blocks = plan, blocks
        self.boxes = {index: self._framed(device, index) for index in plan.target.owned(comm.rank)}
        self._exchange = Exchange(plan, comm, device, blocks, self.boxes, name)
        self._exchange.start()

    def _framed(self, device: Device, index: Index) -> Array:
        """Allocate a box, with zeros beyond the array."""
        box = device.empty(self.plan.target.block_shape(index), self.plan.dtype)
        for axis, part in enumerate(self.plan.inside(index)):
            lead: tuple[Any, ...] = (slice(None),) * axis
            for beyond in (slice(part.start), slice(part.stop, None)):
                box[(*lead, beyond)] = 0
        return box

    def finish(self) -> None:
        """Fill the boxes."""
        self._exchange.copy_blocks()
        self._exchange.finish()

    def finish_whole(self) -> Array | None:
        """Return this rank's copy of the whole array, ``None`` if it needs none."""
        self.finish()
        if not self.boxes:
            return next(iter(self._blocks.values()), None)
        ((_, box),) = self.boxes.items()
        return box.reshape(self.plan.layout.shape)
