"""What a redistribution costs: bytes between ranks, memory, seconds."""

from __future__ import annotations

import numpy as np

from dask_dgpu.algorithms.redistribute.plan import RedistributePlan
from graph_opt.cost import Machine, pipelined


def traffic(plan: RedistributePlan) -> tuple[tuple[int, ...], ...]:
    """Return the bytes that each rank sends to each: ``traffic(plan)[sender][receiver]``."""
    counts = plan.overlap.traffic(plan.size) * plan.itemsize
    np.fill_diagonal(counts, 0)
    return tuple(map(tuple, counts.tolist()))


def workspace(plan: RedistributePlan) -> int:
    """Return the most bytes that a rank uses beyond its source and target blocks.

    Those are the message buffers of two rounds and, if ``plan.transformed``, the
    units of two rounds; what ``read`` needs besides is the caller's to know.
    """
    return min(2, plan.rounds) * plan.moves.busiest


def cost(plan: RedistributePlan, machine: Machine) -> float:
    """Predict the seconds of a plan: packing and unpacking, and the transfer behind it."""
    if not plan.rounds:
        return 0.0
    counts = plan.overlap.traffic(plan.size) * plan.itemsize
    stays = counts.diagonal().copy()
    np.fill_diagonal(counts, 0)
    sent, received = counts.sum(axis=1), counts.sum(axis=0)
    copied = 2 * int((sent + received + stays).max())  # read and written
    moved = int(np.maximum(sent, received).max())
    transfer = moved / machine.bandwidth
    seconds = pipelined(
        copied / machine.memory_bandwidth, transfer, transfer / plan.rounds, plan.rounds
    )
    return seconds + (plan.rounds * machine.latency if moved else 0.0)
