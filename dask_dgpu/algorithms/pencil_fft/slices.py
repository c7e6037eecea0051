"""The transforms of a stage on slices of blocks, in place."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dask_dgpu.algorithms import Array, Blocks
from dask_dgpu.algorithms.pencil_fft.plan import Stage
from dask_dgpu.algorithms.redistribute.plan import LEAST
from dask_dgpu.kernels.fft import transform
from graph_opt.model.layout import Index

SLICE = LEAST // 2
"""Bytes of a slice of a block that a ``sliced`` stage transforms; its library takes as much."""


def slice_of(stage: Stage, shape: Sequence[int], itemsize: int) -> tuple[int, int, int]:
    """Return the axis along which slices of a block are cut, their length and their bytes."""
    whole = {each.axis for each in stage.transforms}
    axis = max(set(range(len(shape))) - whole, key=lambda k: shape[k])
    nbytes = math.prod(shape[:axis]) * math.prod(shape[axis + 1 :]) * itemsize
    length = max(1, SLICE // max(1, nbytes))
    return axis, length, length * nbytes


def transform_slices(stage: Stage, blocks: Blocks) -> dict[Index, Array]:
    """Transform blocks in place, a slice at a time, so that no library has a whole block beside."""
    for block in blocks.values():
        axis, length, _ = slice_of(stage, block.shape, block.itemsize)
        for start in range(0, block.shape[axis], length):
            part = block[(*[slice(None)] * axis, slice(start, start + length))]
            part[...] = transform(part, stage.transforms)
    return dict(blocks)
