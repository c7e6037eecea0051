"""Blocks that are the middles of memory that has room for their ghost cells.

What a function makes of an extended block is as large, and is trimmed; the next exchange
can fill the ghost cells around what is left, without copying it. So a loop keeps its ghost
storage from step to step. That must not be seen: nobody else may hold the block, or the
memory around it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dask_dgpu.algorithms.halo.plan import HaloPlan
from dask_dgpu.kernels.device import Device
from graph_opt.model.layout import Index

Array = Any
Blocks = Mapping[Index, Array]


def storage_around(
    plan: HaloPlan, device: Device, blocks: Blocks, wanted: Sequence[Index]
) -> dict[Index, Array] | None:
    """Return the memory around blocks, shaped as extended blocks.

    Parameters
    ----------
    plan : HaloPlan
        What becomes of the blocks.
    device : Device
        Where they are.
    blocks : mapping of tuple of int to array
        The blocks that this rank owns, which the caller holds in this mapping alone.
    wanted : sequence of tuple of int
        The blocks that are extended.

    Returns
    -------
    dict of tuple of int to array, or None
        None unless each of these blocks has such memory, and all others could only be seen
        through this mapping.
    """
    if not plan.corners:  # which are zero
        return None
    found = {}
    for index in wanted:
        if index not in blocks or _references(blocks, index) != ALONE:
            return None
        whole = blocks[index].base
        if not device.owns(whole) or not _is_middle(plan, index, blocks[index], whole):
            return None
        found[index] = whole
    return found


def _references(blocks: Blocks, index: Index) -> tuple[int, int]:
    """Count what refers to a block, and to the memory that it is a view of."""
    block = blocks[index]
    whole = block.base
    return sys.getrefcount(block), sys.getrefcount(whole)


ALONE = _references({(): np.empty(2)[1:]}, ())
"""The references if there is nothing but the view in its mapping."""


def _is_middle(plan: HaloPlan, index: Index, block: Array, whole: Array) -> bool:
    """Whether a block is where it should be in its extended block."""
    if whole.shape != plan.target.block_shape(index) or whole.dtype != block.dtype:
        return False
    middle = whole[plan.interior(index)]
    here, there = (
        array.__array_interface__
        if isinstance(array, np.ndarray)
        else array.__cuda_array_interface__
        for array in (block, middle)
    )
    return bool(
        whole.flags.c_contiguous
        and here["data"] == there["data"]
        and block.shape == middle.shape
        and block.strides == middle.strides
    )
