"""Halo exchange."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from dask_dgpu.algorithms.halo.plan import HaloPlan
from graph_opt.model.layout import Index

Array = Any
Blocks = Mapping[Index, Array]


def halo_reference(plan: HaloPlan, blocks: Blocks) -> dict[Index, Array]:
    """Extend all blocks of all ranks, cell after cell, in NumPy."""
    make = np.empty if plan.corners else np.zeros
    result = {
        index: make(plan.target.block_shape(index), plan.dtype)
        for index, owner in zip(plan.target.indices(), plan.target.owners, strict=True)
        if owner >= 0
    }
    cells, grid = plan.cells, plan.layout.grid
    for cell in range(len(cells.length)):
        which = np.array([cell])
        names = ("at", "length", "start", "step")
        at, length, start, step = (cells.column(name, which)[0].tolist() for name in names)
        index = tuple(map(int, np.unravel_index(int(cells.target[cell]), grid))) if grid else ()
        place = tuple(slice(lo, lo + n) for lo, n in zip(at, length, strict=True))
        if cells.constant[cell] >= 0:
            value = plan.boundary[int(cells.constant[cell])]
            result[index][place] = np.asarray(value).astype(plan.dtype)
            continue
        found = tuple(map(int, np.unravel_index(int(cells.source[cell]), grid))) if grid else ()
        rows = [lo + by * np.arange(n) for lo, by, n in zip(start, step, length, strict=True)]
        result[index][place] = blocks[found][np.ix_(*rows)] if prod(length) else 0
    return result
