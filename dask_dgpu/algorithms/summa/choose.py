"""Choosing the mesh, the place of each rank, and the number of panels by their cost.

On several hosts, each host has a part of the mesh, so that few bytes cross::

    mesh (4, 4, 1) on four hosts of four ranks         mesh (4, 4, 1), badly placed
     _______ _______                                    _______________
    | 0   1 | 4   5 |   a host needs two rows of A     | 0   1   2   3 |   one row of A, and
    | 2   3 | 6   7 |   and two columns of B           |_______________|   all columns of B
    |_______|_______|                                  | 4   5   6   7 |
    | 8 ... |       |                                  |_______________|

A host receives each piece from other hosts once, on one of the ranks that need it. This rank passes
it on within the host. So the bytes between hosts are those that hosts need and do not own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from itertools import product as cartesian
from math import prod

import numpy as np
from scipy.optimize import linear_sum_assignment

from dask_dgpu.algorithms.summa.plan import (
    Floats,
    Ints,
    Mesh,
    Operand,
    Spans,
    Strategy,
    SummaPlan,
)
from dask_dgpu.algorithms.summa.wire import EXACT, Sparse
from graph_opt.model.cost import Machine, host_by_rank, link_seconds, pipelined
from graph_opt.model.layout import Cuts, block_spans, even_spans

STEPS = (1, 2, 4, 8, 16)
"""Numbers of panels; more were never faster, since each costs a collective."""

LINES = ("row", "column", "inner")
"""The strategies on a line of ranks, in the order of a mesh's axes."""

Candidate = tuple[SummaPlan, Mesh | None]
"""A plan without places, and the part of its mesh that a host has, if hosts are equal."""

PANEL_SECONDS = 1e-4
"""The host's work for a panel, which counts in products with a vector."""


DOUBLED = 4
"""On several hosts, times by which there may be more panels to save memory: each costs a latency
between hosts."""


def plan_summa(
    a: Operand,
    b: Operand,
    dtype: str,
    size: int,
    machine: Machine,
    *,
    strategy: Strategy = "auto",
    mesh: Mesh | None = None,
    steps: int | None = None,
    room: float | None = None,
) -> SummaPlan:
    """Choose the mesh and the number of panels with the lowest predicted cost.

    ``strategy`` names a family of meshes to choose from; ``mesh`` and ``steps`` override the
    choice. ``room`` are the bytes of memory of a rank: panels are narrower if the operands leave
    too little. The plan is the same on every rank.
    """
    best: tuple[float, float, SummaPlan] | None = None
    owned = int((a.shares(size, a.itemsize) + b.shares(size, b.itemsize)).max())
    meshes, spread = [mesh] if mesh else _meshes(a, b, size, strategy), machine.spread_over(size)
    chosen = quickest(meshes, a, b, machine) if spread else [(mesh, None) for mesh in meshes]
    reads = machine.one_sided and a.encoding == b.encoding == EXACT  # reads do not convert
    exact = not any(isinstance(each.encoding, Sparse) for each in (a, b))
    hosts = machine.hosts if exact and spread else ()
    even = [
        (SummaPlan(a, b, dtype, size, each, _even(a, b, each), (), 1, 1, reads, hosts=hosts), part)
        for each, part in chosen
    ]
    for bare, part in [*even, *_by_owners(even)]:
        plan, moved, stays, link = _placed(bare, part, machine)
        plan = replace(plan, one_sided=reads and moved > machine.window_seconds * machine.bandwidth)
        reduction = plan.reduction_bytes
        for count in [steps] if steps else panel_counts(plan):
            stepped = replace(plan, steps=count, nominal_steps=count)
            stepped = replace(stepped, in_place=_in_place(stepped, stays))
            if mesh is None and strategy == "auto" and reduction > stepped.workspace_limit:
                continue  # the layers' partial sums would not fit into four panels
            panels = min(stepped.workspace_limit, 4 * stepped.panel_bytes(count) + reduction)
            peak = owned + stepped.sum_bytes + panels
            over = max(0.0, peak - room) if room is not None else 0.0
            if best is not None and (over, cost(stepped, link, moved, 0.0)) >= best[:2]:
                continue  # not even if its first transfer were hidden
            # of all transfers the busiest rank's share, if there are hosts
            first = moved / count if hosts or count == 1 else float(traffic(stepped)[0, 1].max())
            seconds_of_plan = over, cost(stepped, link, moved, first)
            if best is None or seconds_of_plan < best[:2]:
                best = *seconds_of_plan, stepped
    assert best is not None  # (1, 1, 1) always fits
    plan = best[2]
    # a rank that owns much more than its share sends more than a panel in a step
    limit, reduction = plan.workspace_limit, plan.reduction_bytes
    limit += reduction if reduction > limit else 0  # a forced strategy may have large partial sums
    most = min(plan.deepest, DOUBLED * plan.steps if plan.hosts else plan.deepest)
    while plan.steps < most and workspace(plan) > limit:
        plan = replace(plan, steps=min(2 * plan.steps, most))
    return plan


def panel_counts(plan: SummaPlan) -> list[int]:
    """Return the numbers of panels to choose from.

    To skip empty blocks, panels are at most as deep as these, as far as the numbers go.
    """
    counts = [count for count in STEPS if count <= max(1, plan.deepest)]
    if not any(
        isinstance(operand.encoding, Sparse) and operand.encoding.skips for operand in plan.operands
    ):
        return counts
    blocks = int(np.count_nonzero(np.diff(plan.a.columns))) // plan.mesh[2]
    return [count for count in counts if count >= blocks] or counts[-1:]


def cost(plan: SummaPlan, machine: Machine, received: float, first: float) -> float:
    """Predict the seconds of a plan; the busiest rank receives these bytes, and these first.

    One-sided reads need no packing, and synchronise the ranks twice instead of once a step.
    """
    depth = plan.mesh[2]
    tallest, widest = plan.extents
    deepest, itemsize = plan.deepest, plan.itemsize
    rate = machine.product_rate((tallest, deepest // plan.steps, widest), plan.accumulator)
    compute = 2 * tallest * widest * (deepest + plan.steps * machine.ramp) / rate
    if any(plan.in_place):  # each product reads and writes C
        products = max(plan.steps, len(plan.a.columns) // depth)
        touched = (tallest + widest) * deepest + 2 * products * tallest * widest
        compute = max(compute, touched * itemsize / machine.memory_bandwidth)
    panels = sum(plan.panel_extents) * deepest * itemsize
    transfers = received / machine.bandwidth, min(first, received) / machine.bandwidth
    seconds = pipelined(compute, *transfers, plan.steps)
    if received:  # otherwise there is no exchange
        seconds += machine.latency * (2 if plan.one_sided else plan.steps)
        seconds += machine.window_seconds if plan.one_sided else 0.0
    copies = 2 if plan.one_sided else 4
    buffers = 4 * plan.panel_bytes(plan.nominal_steps)
    seconds += (copies * panels + buffers) / machine.memory_bandwidth
    if 1 in plan.extents:  # its products are short
        seconds += plan.steps * PANEL_SECONDS
    passes = max(operand.encoding.passes for operand in plan.operands)
    seconds += passes * received / machine.memory_bandwidth
    if depth > 1:
        partial = tallest * widest * itemsize
        seconds += machine.latency + partial * (depth - 1) / depth / machine.bandwidth
        seconds += 3 * partial / machine.memory_bandwidth
    return seconds


def _meshes(a: Operand, b: Operand, size: int, strategy: Strategy) -> list[Mesh]:
    """Return the meshes of a strategy with at least one block of C for each rank of a layer."""
    most = [max(1, min(size, length)) for length in (a.grid[0], b.grid[1], a.columns[-1])]
    if strategy in LINES:
        extents = zip(LINES, most, strict=True)
        rows, columns, depth = (extent if name == strategy else 1 for name, extent in extents)
        return [(rows, columns, depth)]
    meshes: list[Mesh] = []
    for depth in range(1, (most[2] if strategy == "auto" else 1) + 1):
        for rows in range(1, min(size // depth, most[0]) + 1):
            columns = min(size // (depth * rows), most[1])
            meshes.append((rows, columns, depth))
    flat = [mesh for mesh in meshes if min(mesh[:2]) > 1] if strategy == "summa" else []
    return flat or meshes  # no mesh has two axes on fewer than four ranks


def _even(a: Operand, b: Operand, mesh: Mesh) -> Spans:
    """Divide rows, columns and contraction evenly."""
    rows, columns, depth = mesh
    layers = even_spans(0, a.columns[-1], depth)
    return block_spans(a.rows, rows), block_spans(b.columns, columns), layers


def _by_owners(plans: list[Candidate]) -> list[Candidate]:
    """Divide rows, columns and contraction by the owners of their blocks, if this is possible.

    Blocks of a rank must be side by side, and the ranks as many as the mesh has along the axis.
    """
    a, b = plans[0][0].a, plans[0][0].b
    owners = owners_along(a, b, plans[0][0].size)
    rows, columns, inner = map(_edges, owners, (a.rows, b.columns, a.columns))
    edges = rows, columns, [a.columns[at] for at in inner]
    orders = []
    for plan, part in plans:
        first, second, third = (
            tuple(pairwise(edge)) if len(edge) == len(even) + 1 > 2 else even
            for edge, even in zip(edges, plan.spans, strict=True)
        )
        if (first, second, third) != plan.spans:
            orders.append((replace(plan, spans=(first, second, third)), part))
    return orders


def _edges(owners: Ints, cuts: Cuts) -> list[int]:
    """Return the first block of each owner and the number of blocks; empty blocks do not count."""
    if not len(owners):
        return [0]
    full = np.flatnonzero(np.diff(cuts))
    changes = full[1:][owners[full][1:] != owners[full][:-1]]
    return [0, *changes.tolist(), len(owners)]


def owners_along(a: Operand, b: Operand, size: int) -> tuple[Ints, Ints, Ints]:
    """Return the rank with most bytes of each block row, block column and block between them.

    Operands that have different chunks along the contraction have no such blocks.
    """
    rows, columns = _owners(a, size, 0), _owners(b, size, 1)
    if a.columns != b.rows:
        return rows.argmax(axis=0), columns.argmax(axis=0), np.zeros(0, np.int64)
    inner = _owners(a, size, 1) + _owners(b, size, 0)
    return rows.argmax(axis=0), columns.argmax(axis=0), inner.argmax(axis=0)


def _owners(operand: Operand, size: int, axis: int) -> Floats:
    """Return the bytes of each rank in each block row, or block column."""
    nbytes = np.zeros((size, operand.grid[axis]))
    np.add.at(nbytes, (operand.ranks, np.indices(operand.grid)[axis]), operand.sizes)
    return nbytes


def _placed(
    plan: SummaPlan, part: Mesh | None, machine: Machine
) -> tuple[SummaPlan, float, list[bool], Machine]:
    """Place each rank where it owns most of its operands; a host has this part of the mesh.

    Returns the plan, the bytes that the busiest rank receives, which operands stay, and the machine
    with the bandwidth of these transfers.
    """
    owned = [_owned_bytes(plan, which) for which in (0, 1)]
    local = owned[0][:, :, None, :] + owned[1][:, None, :, :]
    needed = local.sum(axis=0).reshape(-1)
    seats: Ints
    if part is not None:
        ranks = np.array(seated(local, plan, part, machine.hosts))
        seats = np.arange(plan.size)
    else:
        ranks, seats = linear_sum_assignment(local.reshape(plan.size, -1), maximize=True)
    local = local.reshape(plan.size, -1)
    places = np.zeros(prod(plan.mesh), np.int64)
    places[seats] = ranks
    received = max(0.0, float((needed[seats] - local[ranks, seats]).max()))
    placed = replace(plan, places=tuple(places.tolist()))
    stays = [_stays(placed, which, owned[which]) for which in (0, 1)]
    return placed, received, stays, transfers_of(placed, machine, received, owned)


def _stays(plan: SummaPlan, which: int, nbytes: Floats) -> bool:
    """Whether every rank owns all blocks of an operand that it multiplies."""
    starts = {lo for lo, _ in plan.spans[2]}
    if plan.mesh[1 - which] > 1 or not starts.issubset(plan.operands[which].cuts[1 - which]):
        return False  # several ranks need a block
    places = np.reshape(plan.places, (1, plan.mesh[which], plan.mesh[2]))
    return bool(np.all(np.take_along_axis(nbytes, places, axis=0) == nbytes.sum(axis=0)))


def _owned_bytes(plan: SummaPlan, which: int) -> Floats:
    """Return the bytes in messages of an operand for each rank, part and layer of the mesh."""
    operand, spans = plan.operands[which], plan.spans[which]
    ranks, sizes, inner = operand.ranks, operand.travelling, operand.cuts[1 - which]
    if which == 1:
        ranks, sizes = ranks.T, sizes.T
    nbytes = np.zeros((plan.size, len(spans), plan.mesh[2]))
    parts = np.repeat(np.arange(len(spans)), [hi - lo for lo, hi in spans])
    starts = [lo for lo, _ in plan.spans[2]]
    middles = (np.array(inner[:-1]) + inner[1:]) / 2
    # the layer of most of each chunk
    layers = np.maximum(np.searchsorted(starts, middles, side="right") - 1, 0)
    np.add.at(nbytes, (ranks, parts[:, None], layers), sizes)
    return nbytes


def _in_place(plan: SummaPlan, stays: Sequence[bool]) -> tuple[bool, bool]:
    """Return which operands are multiplied where they lie, block by block.

    Each product reads and writes a part of C. That must not take longer than copying the blocks
    into a panel, so a block must be at least as deep as C is wide, or high.
    """
    blocks = max(1, int(np.count_nonzero(np.diff(plan.a.columns))))
    depth = min(plan.a.columns[-1] / blocks, plan.deepest / plan.steps)
    left, right = (
        there and operand.dtype == plan.accumulator and other <= depth
        for there, operand, other in zip(stays, plan.operands, plan.extents[::-1], strict=True)
    )
    return left, right


KEPT = 6
"""Meshes of one layer, and of several layers, that are compared in detail."""


def quickest(
    meshes: list[Mesh], a: Operand, b: Operand, machine: Machine
) -> list[tuple[Mesh, Mesh | None]]:
    """Return some meshes with the part of each host, ``None`` if hosts have no equal parts.

    These are the meshes that transfer quickest if all have equal shares: at most ``KEPT`` of one
    layer and ``KEPT`` of several.
    """
    timed: list[tuple[float, Mesh, Mesh | None]] = []
    for mesh in meshes:
        parts: list[Mesh | None] = [*_parts(mesh, machine.hosts)] or [None]
        timed += [(_even_seconds(mesh, part, a, b, machine), mesh, part) for part in parts]
    timed.sort(key=lambda each: each[0])
    flat = [each[1:] for each in timed if each[1][2] == 1][:KEPT]
    return flat + [each[1:] for each in timed if each[1][2] > 1][:KEPT]


def _parts(mesh: Mesh, hosts: tuple[int, ...]) -> Iterator[Mesh]:
    """Yield the parts of a mesh that one host can have, if all hosts have as many ranks."""
    each = hosts[0]
    if len(set(hosts)) > 1 or prod(mesh) != sum(hosts):
        return
    for rows, columns in cartesian(range(1, each + 1), repeat=2):
        part = rows, columns, each // (rows * columns)
        if prod(part) == each and not any(n % k for n, k in zip(mesh, part, strict=True)):
            yield part


def _even_seconds(mesh: Mesh, part: Mesh | None, a: Operand, b: Operand, machine: Machine) -> float:
    """Predict the transfers of equal shares: within the busiest host, and on its link."""
    m, k, n = a.rows[-1], a.columns[-1], b.columns[-1]
    bytes_of_a, bytes_of_b = m * k * a.itemsize, k * n * b.itemsize
    bytes_of_c = m * n * max(a.itemsize, b.itemsize)

    def moved(rows: int, columns: int, depth: int) -> float:
        return (
            bytes_of_a / (rows * depth) * (1 - 1 / columns)
            + bytes_of_b / (columns * depth) * (1 - 1 / rows)
            + bytes_of_c / (rows * columns) * (1 - 1 / depth)
        )

    if part is None:
        return moved(*mesh) / machine.rank_rate(sum(machine.hosts))
    rows, columns, depth = (n // k for n, k in zip(mesh, part, strict=True))
    return moved(*mesh) / machine.bandwidth + link_seconds(machine, [moved(rows, columns, depth)])


def seated(local: Floats, plan: SummaPlan, part: Mesh, hosts: tuple[int, ...]) -> tuple[int, ...]:
    """Return the rank at each place of a mesh: hosts and then ranks where they own most.

    ``local[rank, r, c, d]`` are the bytes of what a place needs that a rank owns.
    """
    mesh = plan.mesh
    cells = [n // k for n, k in zip(mesh, part, strict=True)]
    split = [extent for pair in zip(cells, part, strict=True) for extent in pair]
    # hosts and ranks of a host, cells of the mesh and places in a cell
    shape = len(hosts), hosts[0], *split
    owned = local.reshape(shape).transpose(0, 1, 2, 4, 6, 3, 5, 7)
    owned = owned.reshape(len(hosts), hosts[0], len(hosts), hosts[0])
    _, cell_of = linear_sum_assignment(owned.sum(axis=(1, 3)), maximize=True)
    seats = np.zeros((len(hosts), hosts[0]), np.int64)
    for host, cell in enumerate(cell_of):
        ranks, places = linear_sum_assignment(owned[host, :, cell], maximize=True)
        seats[cell, places] = host * hosts[0] + ranks
    whole = seats.reshape(*cells, *part).transpose(0, 3, 1, 4, 2, 5)
    return tuple(whole.ravel().tolist())


def transfers_of(
    plan: SummaPlan, machine: Machine, received: float, owned: list[Floats] | None = None
) -> Machine:
    """Return the machine with the bandwidth of this plan's transfers, as if on one host.

    The busiest rank receives ``received`` bytes. ``owned`` has for each operand the bytes of each
    rank, part and layer of the mesh, if they are known.
    """
    if not machine.spread_over(plan.size):
        return machine
    if not plan.hosts:
        return replace(machine, bandwidth=machine.rank_rate(plan.size))
    owned = owned or [_owned_bytes(plan, which) for which in (0, 1)]
    operands, partials = link_bytes(plan, owned)
    depth = plan.mesh[2]
    nbytes = received + plan.sum_bytes * (depth - 1) / depth
    seconds = nbytes / machine.bandwidth + link_seconds(machine, operands + partials)
    return replace(machine, bandwidth=nbytes / seconds) if nbytes else machine


def link_bytes(plan: SummaPlan, owned: list[Floats]) -> tuple[Floats, Floats]:
    """Return the bytes that each host receives: of operands, and of other layers' partial sums."""
    host, count = host_by_rank(plan.hosts), len(plan.hosts)
    operands, partials = np.zeros(count), np.zeros(count)
    places: Ints = np.reshape(plan.places, plan.mesh)
    at = host[places]
    rows, columns, layers = np.indices(plan.mesh)
    for which, parts in enumerate((rows, columns)):
        needed = np.zeros((count, *owned[which].shape[1:]), bool)
        needed[at, parts, layers] = True
        mine = np.zeros(needed.shape)
        np.add.at(mine, host, owned[which])
        missing = owned[which].sum(axis=0) - mine
        operands += (needed * missing).sum(axis=(1, 2))
    near = (at[:, :, :, None] == at[:, :, None, :]).sum(axis=3)
    away = (plan.mesh[2] - near) / plan.mesh[2] * plan.sum_bytes
    np.add.at(partials, at.ravel(), away.ravel())
    return operands, partials


def workspace(plan: SummaPlan) -> int:
    """Return the most bytes of a rank beyond its share of A, B and C."""
    steps = by_step(plan).reshape(plan.steps, -1, plan.size)
    panels = min(2, plan.steps) * plan.panel_bytes(plan.steps)
    messages = int(steps.max(axis=0).sum(axis=0).max())
    return messages + panels + max(plan.reduction_bytes, plan.copied_bytes)


def traffic(plan: SummaPlan) -> Ints:
    """Return the bytes that each rank sends and receives in each step, ``[step, way, rank]``."""
    received: Ints = by_step(plan).sum(axis=1)
    return received


def summed(plan: SummaPlan) -> Ints:
    """Return the bytes that each rank receives of other layers' partial sums, after all steps."""
    total = np.zeros(plan.size, np.int64)
    for rank, (r, c, d) in plan.positions.items():
        total[rank] = (plan.mesh[2] - 1) * plan.kept[r, c][d]
    return total


def by_step(plan: SummaPlan) -> Ints:
    """Return the bytes that each rank sends and receives, ``[step, level, way, rank]``.

    On several hosts, what ranks of a host pass on is a second level.
    """
    shape = plan.steps, 2 if plan.hosts else 1, 2, plan.size
    _, moves = plan.moves
    away = np.where(moves.source != moves.target, moves.nbytes, 0)
    at = [((moves.step * shape[1] + moves.passed) * 2 + way) * plan.size for way in (0, 1)]
    ranks = np.concatenate([at[0] + moves.source, at[1] + moves.target])
    sums = np.bincount(ranks, np.concatenate([away, away]), prod(shape))
    return sums.reshape(shape).astype(np.int64)
