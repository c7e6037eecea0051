"""Choosing the mesh, the place of each rank, and the number of panels by their cost."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from dask_dgpu.algorithms.summa.plan import Mesh, Operand, SummaPlan
from dask_dgpu.algorithms.summa.schedule import Needs, bounded
from graph_opt.model.cost import Machine, pipelined
from graph_opt.model.layout import Cuts, Span

Array = Any

MAX_STEPS = 16
"""More panels were never faster: each costs a collective."""


def plan_summa(
    a: Operand,
    b: Operand,
    dtype: str,
    size: int,
    machine: Machine,
    *,
    mesh: Mesh | None = None,
    steps: int | None = None,
    room: float | None = None,
) -> SummaPlan:
    """Choose the mesh and the number of panels with the lowest predicted cost.

    ``mesh`` and ``steps`` override the choice. ``room`` are the bytes of memory of a rank: panels
    are narrower if the operands leave too little. The plan is the same on every rank.

    Raises
    ------
    ValueError
        If the operands do not conform, the mesh does not fit ``size``, or ``steps`` is not
        positive.
    """
    if a.columns[-1] != b.rows[-1]:
        raise ValueError(
            f"expected as many columns of a as rows of b, got {a.columns[-1]} and {b.rows[-1]}"
        )
    if mesh is not None and (min(mesh) < 1 or mesh[0] * mesh[1] * mesh[2] > size):
        raise ValueError(f"expected a mesh of 1 to {size} ranks, each extent positive, got {mesh}")
    if steps is not None and steps < 1:
        raise ValueError(f"expected positive steps, got {steps}")
    best: tuple[float, float, SummaPlan] | None = None
    owned = max(a.share(rank) + b.share(rank) for rank in range(size))
    for candidate in [mesh] if mesh else _meshes(a, b, size):
        bare = SummaPlan(a, b, dtype, size, candidate, (), 1, 1, machine.one_sided)
        plan, moved = _placed(bare)
        needs, reduction = None, plan.reduction_bytes
        for count in [steps] if steps else _step_counts(plan):
            stepped = replace(plan, steps=count, nominal_steps=count)
            if mesh is None and reduction > stepped.workspace_limit:
                continue  # the layers' partial sums would not fit into four panels
            peak = owned + stepped.sum_bytes + stepped.workspace_limit
            over = max(0.0, peak - room) if room is not None else 0.0
            if best is not None and (over, cost(stepped, machine, moved, 0.0)) >= best[:2]:
                continue  # not even if its first transfer were hidden
            needs = needs or Needs(plan)
            found = over, cost(stepped, machine, moved, max(needs.received(stepped, 0)))
            if best is None or found < best[:2]:
                best = *found, stepped
    assert best is not None  # (1, 1, 1) always fits
    return bounded(best[2])


def cost(plan: SummaPlan, machine: Machine, received: float, first: float) -> float:
    """Predict the seconds of a plan; the busiest rank receives these bytes, and these first.

    One-sided reads need no packing, and synchronise the ranks twice instead of once a step.
    """
    _rows, _columns, depth = plan.mesh
    tallest, widest = plan.extents
    deepest, itemsize = plan.deepest, plan.itemsize
    compute = 2 * tallest * widest * (deepest + plan.steps * machine.ramp) / machine.flops
    panels = (tallest + widest) * deepest * itemsize
    transfers = received / machine.bandwidth, min(first, received) / machine.bandwidth
    seconds = pipelined(compute, *transfers, plan.steps)
    if received:  # otherwise there is no exchange
        seconds += machine.latency * (2 if plan.one_sided else plan.steps)
    passes = 2 if plan.one_sided else 4
    seconds += (passes * panels + plan.workspace_limit) / machine.memory_bandwidth
    if depth > 1:
        partial = tallest * widest * itemsize
        seconds += machine.latency + partial * (depth - 1) / depth / machine.bandwidth
        seconds += 3 * partial / machine.memory_bandwidth
    return seconds


def _meshes(a: Operand, b: Operand, size: int) -> list[Mesh]:
    """Return all meshes with at least one block of C for each rank of a layer."""
    k, block_rows, block_columns = a.columns[-1], a.grid[0], b.grid[1]
    found: list[Mesh] = []
    for depth in range(1, max(1, min(size, k)) + 1):
        for rows in range(1, max(1, min(size // depth, block_rows)) + 1):
            columns = min(size // (depth * rows), max(1, block_columns))
            if columns >= 1:
                found.append((rows, columns, depth))
    return found


def _step_counts(plan: SummaPlan) -> list[int]:
    return [s for s in (1, 2, 4, 8, MAX_STEPS) if s <= max(1, plan.deepest)]


def _placed(plan: SummaPlan) -> tuple[SummaPlan, float]:
    """Place each rank where it owns most of its operands; return the plan and the received bytes.

    The bytes are those of the busiest rank.
    """
    bytes_a = _owned_bytes(plan, plan.a.ranks, plan.a.sizes(), plan.row_spans, plan.a.columns)
    bytes_b = _owned_bytes(plan, plan.b.ranks.T, plan.b.sizes().T, plan.column_spans, plan.b.rows)
    local = bytes_a[:, :, None, :] + bytes_b[:, None, :, :]
    needed = local.sum(axis=0).reshape(-1)
    local = local.reshape(plan.size, -1)
    ranks, seats = linear_sum_assignment(local, maximize=True)
    places = [0] * prod(plan.mesh)
    received = 0.0
    for rank, seat in zip(ranks, seats, strict=True):
        places[seat] = int(rank)
        received = max(received, float(needed[seat] - local[rank, seat]))
    return replace(plan, places=tuple(places)), received


def _owned_bytes(
    plan: SummaPlan, ranks: Array, sizes: Array, spans: tuple[Span, ...], contraction: Cuts
) -> Array:
    """Return the bytes of each rank for each (part of the mesh, layer of the mesh).

    ``spans`` are the parts of the first axis of the operand; ``contraction`` cuts the other.
    """
    nbytes = np.zeros((plan.size, len(spans), plan.mesh[2]))
    parts = np.repeat(np.arange(len(spans)), [hi - lo for lo, hi in spans])
    starts = [lo for lo, _ in plan.depth_spans]
    middles = (np.array(contraction[:-1]) + contraction[1:]) / 2
    # the layer of most of each chunk
    layers = np.maximum(np.searchsorted(starts, middles, side="right") - 1, 0)
    np.add.at(nbytes, (ranks, parts[:, None], layers), sizes)
    return nbytes
