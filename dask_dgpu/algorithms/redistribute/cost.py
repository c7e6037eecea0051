"""The cost of a redistribution: bytes between ranks, memory, seconds."""

from __future__ import annotations

from math import sqrt

import numpy as np

from dask_dgpu.algorithms.redistribute.plan import RedistributePlan
from graph_opt.model.cost import Machine, pipelined

LEAST = 64 << 20
"""Bytes that the buffers of a redistribution may always take."""

ROUND_SECONDS = 1e-3
"""Time of the host to describe, pack and send a round of any size."""


def traffic(plan: RedistributePlan) -> tuple[tuple[int, ...], ...]:
    """Return the bytes that each rank sends to each: ``traffic(plan)[sender][receiver]``."""
    counts = plan.overlap.traffic(plan.size) * plan.itemsize
    np.fill_diagonal(counts, 0)
    return tuple(map(tuple, counts.tolist()))


def workspace(plan: RedistributePlan) -> int:
    """Return the most bytes of a rank beyond its source and target blocks.

    These are the message buffers of two rounds and, if ``plan.transformed``, the units of two
    rounds, without the workspace of ``read``.
    """
    return min(2, plan.rounds) * plan.moves.busiest


def buffer_bytes(share: int, spare: int, machine: Machine, *, transformed: bool = False) -> int:
    """Choose the limit of a plan: few rounds, but the first and the last are not hidden.

    ``share`` are the bytes of the array on a rank, ``spare`` the bytes for buffers beyond
    ``LEAST``. Of r rounds that take ``transfer`` together, one is exposed, and each costs a start:
    ``r * start + transfer / r`` is minimal if both terms are equal.
    """
    start = machine.latency + ROUND_SECONDS
    rounds = max(1.0, sqrt(share / machine.bandwidth / start))
    counted = (3 if transformed else 2) * share
    return min(max(LEAST, int(2 * counted / rounds)), LEAST + spare)


def cost(plan: RedistributePlan, machine: Machine) -> float:
    """Predict the seconds of a plan: packing and unpacking, overlapped with the transfer."""
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
    return seconds + plan.rounds * ((machine.latency if moved else 0.0) + ROUND_SECONDS)
