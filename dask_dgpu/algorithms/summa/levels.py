"""Meshes on several hosts: each host has a part of the mesh, so that few bytes cross.

::

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

from collections.abc import Iterator
from dataclasses import replace
from itertools import product as cartesian
from math import prod

import numpy as np
from scipy.optimize import linear_sum_assignment

from dask_dgpu.algorithms.summa.operand import Floats, Ints, Operand
from dask_dgpu.algorithms.summa.plan import Mesh, SummaPlan
from graph_opt.model.cost import Machine
from graph_opt.model.hosts import host_by_rank, link_seconds

KEPT = 6
"""Meshes of one layer, and of several layers, that are compared in detail."""


def quickest(
    meshes: list[Mesh], a: Operand, b: Operand, machine: Machine
) -> list[tuple[Mesh, Mesh | None]]:
    """Return some meshes with the part of each host, ``None`` if hosts have no equal parts.

    These are the meshes that transfer quickest if all have equal shares: at most ``KEPT`` of one
    layer and ``KEPT`` of several.
    """
    found: list[tuple[float, Mesh, Mesh | None]] = []
    for mesh in meshes:
        parts: list[Mesh | None] = [*_parts(mesh, machine.hosts)] or [None]
        found += [(_even_seconds(mesh, part, a, b, machine), mesh, part) for part in parts]
    found.sort(key=lambda each: each[0])
    flat = [each[1:] for each in found if each[1][2] == 1][:KEPT]
    return flat + [each[1:] for each in found if each[1][2] > 1][:KEPT]


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
    size, mesh = len(local), plan.mesh
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
    assert whole.size == size
    return tuple(whole.ravel().tolist())


def linked(plan: SummaPlan, machine: Machine, owned: list[Floats], received: float) -> Machine:
    """Return the machine with the bandwidth of this plan's transfers, as if on one host.

    ``owned`` has for each operand the bytes of each rank, part and layer of the mesh; the busiest
    rank receives ``received`` bytes.
    """
    if not machine.spread_over(plan.size):
        return machine
    if not plan.hosts:
        return replace(machine, bandwidth=machine.rank_rate(plan.size))
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
