"""The sum of a product over the layers of its mesh.

Each layer keeps some blocks of a rectangle of C, and adds them over all layers, in the order of
the layers::

    layer 0   [ C00 C01 | C02 C03 ]
    layer 1   [ C00 C01 | C02 C03 ]
              keeps 0     keeps 1
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from dask_dgpu.algorithms import Array
from dask_dgpu.algorithms.summa.plan import Block, SummaPlan
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import Device


def add_layers(
    plan: SummaPlan, comm: Comm, device: Device, partial: dict[Block, Array]
) -> dict[Block, Array]:
    """Add the partial sums of all layers; return this rank's blocks."""
    heights, widths = np.diff(plan.a.rows).tolist(), np.diff(plan.b.columns).tolist()
    peers, layers = [comm.rank], {}
    if comm.rank in plan.positions:
        r, c, _ = plan.positions[comm.rank]
        peers = [plan.rank_at(r, c, layer) for layer in range(plan.mesh[2])]
        layers = plan.final_layers(r, c)
    kept = {p: [at for at, layer in layers.items() if peers[layer] == p] for p in sorted(peers)}
    sends, receives = [0] * plan.size, [0] * plan.size
    mine = kept[comm.rank]
    for peer, wanted in kept.items():
        sends[peer] = sum(heights[i] * widths[j] for i, j in wanted)
        receives[peer] = sum(heights[i] * widths[j] for i, j in mine)
    with device.computing():
        parts = [partial[at].reshape(-1) for wanted in kept.values() for at in wanted]
        out = device.empty(sum(sends), plan.accumulator)
        inbox = device.empty(sum(receives), plan.accumulator)
        for start, part in zip(accumulate(map(len, parts), initial=0), parts, strict=False):
            out[start : start + len(part)] = part
        comm.all_to_all(inbox, receives, out, sends).wait()
        stops = list(accumulate(receives))
        total, *others = (inbox[stops[p] - receives[p] : stops[p]] for p in peers)
        for other in others:
            total += other
        blocks: dict[Block, Array] = {}
        for i, j in mine:
            part, total = total[: heights[i] * widths[j]], total[heights[i] * widths[j] :]
            part = part.reshape(heights[i], widths[j])
            blocks[i, j] = part.astype(plan.dtype, order="C", copy=True)
        return blocks
