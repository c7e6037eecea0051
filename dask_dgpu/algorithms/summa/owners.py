"""Dividing a product by the owners of its blocks, which are then multiplied where they lie."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from dask_dgpu.algorithms.summa.plan import Floats, Ints, Operand, SummaPlan
from graph_opt.model.layout import Cuts


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


def by_owner(plans: list[SummaPlan]) -> list[SummaPlan]:
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


def _edges(owners: Ints, cuts: Cuts) -> list[int]:
    """Return the first block of each owner and the number of blocks; empty blocks do not count."""
    if not len(owners):
        return [0]
    full = np.flatnonzero(np.diff(cuts))
    changes = full[1:][owners[full][1:] != owners[full][:-1]]
    return [0, *changes.tolist(), len(owners)]


def local(plan: SummaPlan, which: int) -> bool:
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
    ranks, sizes = operand.ranks, operand.sizes
    if which == 1:
        ranks, sizes = ranks.T, sizes.T
    return bool(np.all((ranks == places[parts[:, None], layers]) | (sizes == 0)))


def in_place(plan: SummaPlan, local: tuple[bool, bool]) -> tuple[bool, bool]:
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
