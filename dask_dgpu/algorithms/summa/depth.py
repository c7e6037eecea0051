"""The last step of a mesh with several layers: adding their partial sums of C.

::

    layer 0   [ C00 C01 | C02 C03 ]        each layer keeps some blocks of the
    layer 1   [ C00 C01 | C02 C03 ]        rectangle and adds them over all
              keeps 0     keeps 1          layers, in the order of the layers
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from dask_dgpu.algorithms.summa.plan import SummaPlan
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import Device
from graph_opt.model.layout import Cuts, Span

Array = Any
Block = tuple[int, int]


@dataclass(frozen=True)
class Strip:
    """Partial sums of adjacent blocks of C.

    ``columns`` is a span of block columns, ``group`` their group, and ``top`` the first row in the
    rank's rectangle.
    """

    row: int
    columns: Span
    group: int
    top: int
    sums: Array

    def cut(self, cuts: Cuts) -> Iterator[tuple[Block, Array]]:
        """Yield the blocks, as views."""
        left = cuts[self.columns[0]]
        for j in range(*self.columns):
            yield (self.row, j), self.sums[:, cuts[j] - left : cuts[j + 1] - left]


def reduce_layers(
    plan: SummaPlan, comm: Comm, device: Device, strips: list[Strip]
) -> dict[Block, Array]:
    """Add the partial sums of all layers; return this rank's blocks."""
    place = plan.position(comm.rank)
    heights, widths = np.diff(plan.a.rows).tolist(), np.diff(plan.b.columns).tolist()
    mine: list[Block] = []
    peers: list[int] = []
    parts: list[Array] = []
    sends, receives = [0] * plan.size, [0] * plan.size
    with device.computing():
        if place is not None:
            r, c, own = place
            peers = [plan.rank_at(r, c, layer) for layer in range(plan.mesh[2])]
            layers = plan.final_layers(r, c)
            mine = [block for block, layer in layers.items() if layer == own]
            partial = {b: part for strip in strips for b, part in strip.cut(plan.b.columns)}
            for peer in sorted(peers):
                wanted = [b for b, layer in layers.items() if layer == peers.index(peer)]
                parts += [partial[block].reshape(-1) for block in wanted]
                sends[peer] = sum(heights[i] * widths[j] for i, j in wanted)
                receives[peer] = sum(heights[i] * widths[j] for i, j in mine)
        out = device.empty(sum(sends), plan.accumulator)
        inbox = device.empty(sum(receives), plan.accumulator)
        for start, part in zip((0, *accumulate(map(len, parts))), parts, strict=False):
            out[start : start + len(part)] = part
        comm.all_to_all(inbox, receives, out, sends).wait()
        stops = list(accumulate(receives))
        total, *others = (inbox[stops[p] - receives[p] : stops[p]] for p in peers or [comm.rank])
        for other in others:
            total += other
        blocks: dict[Block, Array] = {}
        for i, j in mine:
            part, total = total[: heights[i] * widths[j]], total[heights[i] * widths[j] :]
            part = part.reshape(heights[i], widths[j])
            blocks[i, j] = part.astype(plan.dtype, order="C", copy=True)
        return blocks
