"""Choosing the mesh, the place of each rank, and the number of panels by their cost."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
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
    meshes = [mesh] if mesh else _meshes(a, b, size)
    even = [SummaPlan(a, b, dtype, size, each, (), 1, 1, machine.one_sided) for each in meshes]
    for bare in [*even, *_by_owner(even)]:
        plan, moved = _placed(bare)
        local = _local(plan, 0), _local(plan, 1)
        needs, reduction = None, plan.reduction_bytes
        for count in [steps] if steps else _step_counts(plan):
            stepped = replace(plan, steps=count, nominal_steps=count)
            stepped = replace(stepped, in_place=_in_place(stepped, local))
            if mesh is None and reduction > stepped.workspace_limit:
                continue  # the layers' partial sums would not fit into four panels
            panels = min(stepped.workspace_limit, 4 * stepped.panel_bytes(count) + reduction)
            peak = owned + stepped.sum_bytes + panels
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
    if any(plan.in_place):  # each product reads and writes C
        products = max(plan.steps, len(plan.a.columns) // depth)
        touched = (tallest + widest) * deepest + 2 * products * tallest * widest
        compute = max(compute, touched * itemsize / machine.memory_bandwidth)
    panels = sum(plan.panel_extents) * deepest * itemsize
    transfers = received / machine.bandwidth, min(first, received) / machine.bandwidth
    seconds = pipelined(compute, *transfers, plan.steps)
    if received:  # otherwise there is no exchange
        seconds += machine.latency * (2 if plan.one_sided else plan.steps)
    passes = 2 if plan.one_sided else 4
    buffers = 4 * plan.panel_bytes(plan.nominal_steps)
    seconds += (passes * panels + buffers) / machine.memory_bandwidth
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


def owners_along(a: Operand, b: Operand, size: int) -> tuple[Array, Array, Array]:
    """Return the rank with most bytes of each block row, block column and block between them.

    Operands that have different chunks along the contraction have no such blocks.
    """
    rows, columns = _owners(a, size, 0), _owners(b, size, 1)
    if a.columns != b.rows:
        return rows.argmax(axis=0), columns.argmax(axis=0), np.zeros(0, np.int64)
    inner = _owners(a, size, 1) + _owners(b, size, 0)
    return rows.argmax(axis=0), columns.argmax(axis=0), inner.argmax(axis=0)


def _owners(operand: Operand, size: int, axis: int) -> Array:
    """Return the bytes of each rank in each block row, or block column."""
    nbytes = np.zeros((size, operand.grid[axis]))
    np.add.at(nbytes, (operand.ranks, np.indices(operand.grid)[axis]), operand.sizes())
    return nbytes


def _by_owner(plans: list[SummaPlan]) -> list[SummaPlan]:
    """Divide rows, columns and contraction by the owners of their blocks, if this is possible.

    Blocks of a rank must be side by side, and the ranks as many as the mesh has along the axis.
    """
    if not plans:
        return []
    a, b = plans[0].a, plans[0].b
    edges = [
        _edges(owners, cuts)
        for owners, cuts in zip(
            owners_along(a, b, plans[0].size), (a.rows, b.columns, a.columns), strict=True
        )
    ]
    found = []
    for plan in plans:
        rows, columns, inner = (
            tuple(pairwise(each)) if len(each) == extent + 1 > 2 else ()
            for each, extent in zip(edges, plan.mesh, strict=True)
        )
        layers = tuple((a.columns[lo], a.columns[hi]) for lo, hi in inner)
        owned = replace(plan, rows=rows, columns=columns, layers=layers)
        if (owned.row_spans, owned.column_spans, owned.depth_spans) != (
            plan.row_spans,
            plan.column_spans,
            plan.depth_spans,
        ):
            found.append(owned)
    return found


def _edges(owners: Array, cuts: Cuts) -> list[int]:
    """Return the first block of each owner and the number of blocks; empty blocks do not count."""
    if not len(owners):
        return [0]
    full = np.flatnonzero(np.diff(cuts))
    changes = full[1:][owners[full][1:] != owners[full][:-1]]
    return [0, *changes.tolist(), len(owners)]


def _local(plan: SummaPlan, which: int) -> bool:
    """Whether every rank owns all blocks of an operand that it multiplies."""
    if plan.mesh[1 - which] > 1:
        return False
    operand = (plan.a, plan.b)[which]
    inner = np.array(operand.cuts[1 - which])
    starts = [lo for lo, _ in plan.depth_spans]
    layers = np.maximum(np.searchsorted(starts, inner[:-1], side="right") - 1, 0)
    if np.any(np.array(plan.depth_spans)[layers, 1] < inner[1:]):
        return False  # a block belongs to several layers
    parts = np.repeat(
        np.arange(plan.mesh[which]), np.diff((plan.row_spans, plan.column_spans)[which])[:, 0]
    )
    places = np.reshape(plan.places, (plan.mesh[which], plan.mesh[2]))
    ranks, sizes = operand.ranks, operand.sizes()
    if which == 1:
        ranks, sizes = ranks.T, sizes.T
    return bool(np.all((ranks == places[parts[:, None], layers]) | (sizes == 0)))


def _in_place(plan: SummaPlan, local: tuple[bool, bool]) -> tuple[bool, bool]:
    """Return which operands are multiplied where they lie, block by block.

    Each product reads and writes a part of C. That must not take longer than copying the blocks
    into a panel, so a block must be at least as deep as C is wide, or high.
    """
    blocks = max(1, int(np.count_nonzero(np.diff(plan.a.columns))))
    depth = min(plan.a.columns[-1] / blocks, plan.deepest / plan.steps)
    left, right = (
        there and operand.dtype == plan.accumulator and other <= depth
        for there, operand, other in zip(
            local, (plan.a, plan.b), reversed(plan.extents), strict=True
        )
    )
    return bool(left), bool(right)


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
