"""The cost of a halo exchange: bytes between ranks, memory, seconds."""

from __future__ import annotations

import numpy as np

from dask_dgpu.algorithms.halo.plan import HaloPlan
from dask_dgpu.algorithms.redistribute.cells import Ints, table_of
from graph_opt.model.cost import Machine


def traffic(plan: HaloPlan) -> tuple[tuple[int, ...], ...]:
    """Return the bytes that each rank sends to each: ``traffic(plan)[sender][receiver]``."""
    return tuple(map(tuple, _traffic(plan).tolist()))


def workspace(plan: HaloPlan) -> int:
    """Return the bytes of the messages of the busiest rank, in and out."""
    counts = _traffic(plan)
    return int((counts.sum(axis=0) + counts.sum(axis=1)).max(initial=0))


def cost(plan: HaloPlan, machine: Machine, *, copied: bool = True) -> float:
    """Predict the seconds of an exchange on the busiest rank.

    ``copied`` is whether the blocks themselves are copied too, while messages are in transit.
    """
    counts = _traffic(plan)
    sent, received = counts.sum(axis=1), counts.sum(axis=0)
    moved = int(np.maximum(sent, received).max(initial=0))
    transfer = moved / machine.bandwidth + (machine.latency if moved else 0.0)
    inside = 0
    if copied:
        inside = max(plan.target.share(rank, plan.itemsize) for rank in range(plan.size))
    packed = 2 * int((sent + received).max(initial=0))
    return packed / machine.memory_bandwidth + max(transfer, 2 * inside / machine.memory_bandwidth)


def _traffic(plan: HaloPlan) -> Ints:
    cells = plan.cells
    moved, shape = cells.travels, (plan.size, plan.size)
    elements = table_of(cells.sender[moved], cells.receiver[moved], cells.length[moved], shape)
    return elements * plan.itemsize
