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
    shapes = _shapes(plan, place)
    keeps = {} if place is None else plan.final_layers(place[0], place[1])
    mine = [block for block, layer in keeps.items() if place and layer == place[2]]
    sends, receives = [0] * plan.size, [0] * plan.size
    parts: list[Array] = []
    with device.computing():
        if place is not None:
            r, c, _d = place
            peers = [plan.rank_at(r, c, layer) for layer in range(plan.mesh[2])]
            partial = {b: part for strip in strips for b, part in strip.cut(plan.b.columns)}
            for peer in sorted(peers):
                layer = peers.index(peer)
                blocks = [block for block, keeper in keeps.items() if keeper == layer]
                parts += [partial[block].reshape(-1) for block in blocks]
                sends[peer] = sum(shapes[block][0] * shapes[block][1] for block in blocks)
                receives[peer] = sum(shapes[block][0] * shapes[block][1] for block in mine)
        out = device.empty(sum(sends), plan.accumulator)
        inbox = device.empty(sum(receives), plan.accumulator)
        for start, part in zip((0, *accumulate(map(len, parts))), parts, strict=False):
            out[start : start + len(part)] = part
        comm.all_to_all(inbox, receives, out, sends).wait()
        if place is None:
            return {}
        starts = dict(zip(range(plan.size), (0, *accumulate(receives)), strict=False))
        total = inbox[starts[peers[0]] : starts[peers[0]] + receives[peers[0]]]
        for peer in peers[1:]:
            total += inbox[starts[peer] : starts[peer] + receives[peer]]
        return _shaped(plan, total, mine, shapes)


def _shapes(plan: SummaPlan, place: tuple[int, int, int] | None) -> dict[Block, tuple[int, int]]:
    if place is None:
        return {}
    rows, columns = plan.a.rows, plan.b.columns
    return {
        (i, j): (rows[i + 1] - rows[i], columns[j + 1] - columns[j])
        for i, j in plan.final_layers(place[0], place[1])
    }


def _shaped(
    plan: SummaPlan, total: Array, mine: list[Block], shapes: dict[Block, tuple[int, int]]
) -> dict[Block, Array]:
    """Cut the flat sum into blocks in memory of their own."""
    blocks: dict[Block, Array] = {}
    start = 0
    for block in mine:
        height, width = shapes[block]
        part = total[start : start + height * width].reshape(height, width)
        blocks[block] = part.astype(plan.dtype, order="C", copy=True)
        start += height * width
    return blocks
