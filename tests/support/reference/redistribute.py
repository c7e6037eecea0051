"""Redistribution of blocks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

import numpy as np

from dask_dgpu.algorithms.cells import indices_at
from dask_dgpu.algorithms.redistribute.plan import RedistributePlan
from dask_dgpu.algorithms.redistribute.rank import Slices, schedule
from graph_opt.model.layout import Index, Layout

Array = Any
Blocks = Mapping[Index, Array]


def redistribute_reference(plan: RedistributePlan, blocks: Blocks) -> dict[Index, Array]:
    """Redistribute all blocks of all ranks, round after round, in NumPy."""
    cells = plan.moves.cells
    result = {
        index: np.empty(plan.target.block_shape(index), plan.dtype)
        for index, owner in zip(plan.target.indices(), plan.target.owners, strict=True)
        if owner >= 0
    }
    for rank in range(plan.size):
        for index, source in schedule(plan, rank).kept.items():
            result[index] = blocks[source]
    order = np.argsort(plan.moves.round, kind="stable")
    targets = indices_at(cells.target[order], plan.target.grid)
    columns = cells.column("at", order).tolist(), cells.column("length", order).tolist()
    for target, at, shape in zip(targets, *columns, strict=True):
        here = tuple(slice(lo, lo + n) for lo, n in zip(at, shape, strict=True))
        firsts = (cuts[chunk] for cuts, chunk in zip(plan.target.cuts, target, strict=True))
        start = [lo + first for lo, first in zip(at, firsts, strict=True)]
        source, there = _place(plan.source, start, shape)
        result[target][here] = blocks[source][there]
    return result


def _place(layout: Layout, start: list[int], shape: list[int]) -> tuple[Index, Slices]:
    """Return the block that holds a part of the array, and what of the block it is."""
    found = [
        (chunk, slice(at - cuts[chunk], at - cuts[chunk] + length))
        for cuts, at, length in zip(layout.cuts, start, shape, strict=True)
        for chunk in [bisect_right(cuts, at) - 1]
    ]
    return tuple(chunk for chunk, _ in found), tuple(part for _, part in found)
