"""The last step of a mesh with several layers: adding their partial sums of C.

::

    layer 0   [ C00 C01 | C02 C03 ]        each layer keeps some blocks of the
    layer 1   [ C00 C01 | C02 C03 ]        rectangle and adds up those of all
              keeps 0     keeps 1          layers, in the order of the layers
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from dask_dgpu.algorithms.summa.plan import SummaPlan
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import Device

Array = Any
Block = tuple[int, int]


def reduce_layers(
    plan: SummaPlan, comm: Comm, device: Device, strips: list[tuple[int, Array]]
) -> dict[Block, Array]:
    """Add the partial sums of all layers; return the blocks that this rank keeps."""
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
            partial = _cut(plan, place, strips)
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


def _cut(
    plan: SummaPlan, place: tuple[int, int, int], strips: list[tuple[int, Array]]
) -> dict[Block, Array]:
    (first, _), (j0, j1) = plan.row_spans[place[0]], plan.column_spans[place[1]]
    cuts = plan.b.columns
    return {
        (first + at, j): strip[:, cuts[j] - cuts[j0] : cuts[j + 1] - cuts[j0]]
        for at, (_, strip) in enumerate(strips)
        for j in range(j0, j1)
    }


def _shaped(
    plan: SummaPlan, total: Array, mine: list[Block], shapes: dict[Block, tuple[int, int]]
) -> dict[Block, Array]:
    """Cut the flat sum into blocks, each in memory of its own."""
    blocks: dict[Block, Array] = {}
    start = 0
    for block in mine:
        height, width = shapes[block]
        part = total[start : start + height * width].reshape(height, width)
        blocks[block] = part.astype(plan.dtype, order="C", copy=True)
        start += height * width
    return blocks
