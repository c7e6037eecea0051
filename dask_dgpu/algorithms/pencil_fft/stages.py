"""The transforms of a stage on a rank's blocks: whole blocks, or slices of them in place."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dask_dgpu.algorithms import Array, Blocks
from dask_dgpu.algorithms.pencil_fft.plan import PencilPlan, Stage
from dask_dgpu.algorithms.redistribute.plan import LEAST
from dask_dgpu.kernels.fft import transform
from graph_opt.model.layout import Index

SLICE = LEAST // 2
"""Bytes of a slice of a block that a ``sliced`` stage transforms; its library takes as much."""


def overwrites(plan: PencilPlan) -> bool:
    """Whether the last stage reads blocks of an earlier one, and may overwrite slices of these."""
    if len(plan.stages) < 2:
        return False
    stage, (before, after) = plan.stages[-1], plan.exchanges[-2:]
    free = len(stage.chunks) > len(stage.transforms)
    return free and (before.dtype, stage.chunks) == (after.dtype, stage.output_chunks)


def slice_of(stage: Stage, shape: Sequence[int], itemsize: int) -> tuple[int, int, int]:
    """Return the axis along which slices of a block are cut, their length and their bytes."""
    whole = {each.axis for each in stage.transforms}
    axis = max(set(range(len(shape))) - whole, key=lambda k: shape[k])
    nbytes = math.prod(shape[:axis]) * math.prod(shape[axis + 1 :]) * itemsize
    length = max(1, SLICE // max(1, nbytes))
    return axis, length, length * nbytes


def transform_blocks(stage: Stage, blocks: Blocks, *, overwrite: bool) -> dict[Index, Array]:
    """Transform blocks one by one, freeing each input block in turn."""
    left = dict(blocks)
    made = {}
    while left:
        index, block = left.popitem()
        made[index] = transform(block, stage.transforms, overwrite=overwrite)
    return made


def transform_slices(stage: Stage, blocks: Blocks) -> dict[Index, Array]:
    """Transform blocks in place, a slice at a time, so that no library has a whole block beside."""
    for block in blocks.values():
        axis, length, _ = slice_of(stage, block.shape, block.itemsize)
        for start in range(0, block.shape[axis], length):
            part = block[(*[slice(None)] * axis, slice(start, start + length))]
            part[...] = transform(part, stage.transforms)
    return dict(blocks)
