"""Choosing the mesh, the place of each rank, and the number of panels by their cost."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
from scipy.optimize import linear_sum_assignment

from dask_dgpu.algorithms.summa.owners import by_owner, in_place, local
from dask_dgpu.algorithms.summa.plan import Floats, Ints, Mesh, Operand, SummaPlan
from dask_dgpu.algorithms.summa.schedule import aligned
from graph_opt.model.cost import Machine, pipelined
from graph_opt.model.layout import Cuts, Span

STEPS = (1, 2, 4, 8, 16)
"""Numbers of panels; more were never faster, since each costs a collective."""


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
    if mesh is not None and (min(mesh) < 1 or prod(mesh) > size):
        raise ValueError(f"expected a mesh of 1 to {size} ranks, each extent positive, got {mesh}")
    if steps is not None and steps < 1:
        raise ValueError(f"expected positive steps, got {steps}")
    best: tuple[float, float, SummaPlan] | None = None
    owned = int((a.shares(size) + b.shares(size)).max())
    meshes = [mesh] if mesh else _meshes(a, b, size)
    even = [SummaPlan(a, b, dtype, size, each, (), 1, 1, machine.one_sided) for each in meshes]
    for bare in [*even, *by_owner(even)]:
        plan, moved = _placed(bare)
        stays = local(plan, 0), local(plan, 1)
        needs, reduction = None, plan.reduction_bytes
        for count in [steps] if steps else [s for s in STEPS if s <= max(1, plan.deepest)]:
            stepped = replace(plan, steps=count, nominal_steps=count)
            stepped = replace(stepped, in_place=in_place(stepped, stays))
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
    plan = best[2]
    # a rank that owns much more than its share sends more than a panel in a step
    while plan.steps < plan.deepest and workspace(plan) > plan.workspace_limit:
        plan = replace(plan, steps=min(2 * plan.steps, plan.deepest))
    return plan


def cost(plan: SummaPlan, machine: Machine, received: float, first: float) -> float:
    """Predict the seconds of a plan; the busiest rank receives these bytes, and these first.

    One-sided reads need no packing, and synchronise the ranks twice instead of once a step.
    """
    depth = plan.mesh[2]
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


def _placed(plan: SummaPlan) -> tuple[SummaPlan, float]:
    """Place each rank where it owns most of its operands.

    Returns the plan and the bytes that the busiest rank receives.
    """
    bytes_a = _owned_bytes(plan, plan.a.ranks, plan.a.sizes, plan.row_spans, plan.a.columns)
    bytes_b = _owned_bytes(plan, plan.b.ranks.T, plan.b.sizes.T, plan.column_spans, plan.b.rows)
    local = bytes_a[:, :, None, :] + bytes_b[:, None, :, :]
    needed = local.sum(axis=0).reshape(-1)
    local = local.reshape(plan.size, -1)
    ranks, seats = linear_sum_assignment(local, maximize=True)
    places = np.zeros(prod(plan.mesh), np.int64)
    places[seats] = ranks
    received = max(0.0, float((needed[seats] - local[ranks, seats]).max()))
    return replace(plan, places=tuple(places.tolist())), received


def _owned_bytes(
    plan: SummaPlan, ranks: Ints, sizes: Floats, spans: tuple[Span, ...], contraction: Cuts
) -> Floats:
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


class Needs:
    """Bytes that each rank needs from others, as curves along the contraction.

    ``curve(k)`` is the bytes up to position k. So the bytes of any panel are the difference of two
    points, for any number of steps.
    """

    def __init__(self, plan: SummaPlan) -> None:
        self._curves: list[tuple[int, Cuts, Floats]] = []
        for rank, (r, c, _) in plan.positions.items():
            for axis, operand, span in (
                (0, plan.a, plan.row_spans[r]),
                (1, plan.b, plan.column_spans[c]),
            ):
                mine, inner = slice(*span), operand.cuts[1 - axis]
                remote = operand.ranks != rank
                lengths = np.diff(operand.cuts[axis])[mine]
                each = lengths @ (remote if axis == 0 else remote.T)[mine]
                total = np.cumsum(each * np.diff(inner)) * operand.itemsize
                self._curves.append((rank, inner, np.concatenate([[0], total])))

    def received(self, plan: SummaPlan, step: int) -> list[int]:
        """Return the bytes that each rank needs from others in a step, without padding."""
        received = [0] * plan.size
        for rank, inner, curve in self._curves:
            start, stop = np.interp(plan.panel(rank, step), inner, curve)
            received[rank] += round(stop - start)
        return received


def workspace(plan: SummaPlan) -> int:
    """Return the most bytes of a rank beyond its share of A, B and C."""
    most = np.max([traffic(plan, step) for step in range(plan.steps)], axis=0)
    panels = min(2, plan.steps) * plan.panel_bytes(plan.steps)
    return int(most.sum(axis=0).max()) + panels + max(plan.reduction_bytes, plan.copied_bytes)


def traffic(plan: SummaPlan, step: int) -> Ints:
    """Return the bytes that each rank sends, and those that each receives, in a step."""
    sent, received = both = np.zeros((2, plan.size), np.int64)
    for destination in plan.places:
        rows, columns = plan.rectangle(destination)
        panel = plan.panel(destination, step)
        needed = _by_owner(plan.a, rows, panel, plan.size)
        needed += _by_owner(plan.b, panel, columns, plan.size)
        needed[destination] = 0
        sent += needed
        received[destination] += needed.sum()
    return both


def _by_owner(matrix: Operand, rows: Span, columns: Span, size: int) -> Ints:
    """Return the bytes in messages of a part of a matrix, for each owner."""
    heights = np.diff(np.clip(matrix.rows, *rows))
    widths = np.diff(np.clip(matrix.columns, *columns))
    there = np.ix_(heights > 0, widths > 0)
    nbytes = aligned(np.outer(heights, widths)[there] * matrix.itemsize)
    return np.bincount(matrix.ranks[there].ravel(), nbytes.ravel(), size).astype(np.int64)
