"""Ghost cells by NumPy's padding of the whole array."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_dgpu.algorithms.halo.plan import HaloPlan
from graph_opt.model.layout import Index, Layout

Array = Any
Blocks = dict[Index, Array]

PAD = {"periodic": "wrap", "reflect": "symmetric", "mirror": "reflect", "nearest": "edge"}


def blocks_of(whole: Array, layout: Layout) -> Blocks:
    """All blocks that somebody has, as views."""
    return {
        index: whole[
            ..., *(slice(c[at], c[at + 1]) for c, at in zip(layout.cuts, index, strict=True))
        ]
        for index in layout.indices()
        if layout.owner(index) >= 0
    }


def padded(whole: Array, plan: HaloPlan) -> Array:
    """The array with all that lies beyond it, along one axis after the other."""
    for axis, (depth, boundary) in enumerate(zip(plan.depth, plan.boundary, strict=True)):
        width = [(0, 0)] * whole.ndim
        width[axis] = depth
        if boundary is None:
            continue
        if isinstance(boundary, str):
            whole = np.pad(whole, width, PAD[boundary])
        else:
            value = np.asarray(boundary).astype(whole.dtype)
            whole = np.pad(whole, width, constant_values=value)
    return whole


def expected(whole: Array, plan: HaloPlan) -> Blocks:
    """Each extended block, cut out of the padded array."""
    everything, found = padded(whole, plan), {}
    for index in plan.target.indices():
        if plan.target.owner(index) < 0:
            continue
        part = []
        for along, cuts, (before, after), boundary in zip(
            index, plan.layout.cuts, plan.depth, plan.boundary, strict=True
        ):
            lo, hi = cuts[along] - before, cuts[along + 1] + after
            if boundary is None:
                part.append(slice(max(0, lo), min(cuts[-1], hi)))
            else:
                part.append(slice(lo + before, hi + before))
        found[index] = everything[..., *part]
    return found
