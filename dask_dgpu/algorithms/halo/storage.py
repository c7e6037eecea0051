"""Blocks in the middle of memory with room for their ghost cells.

The result of a function of an extended block has the same size, and is trimmed. The next
exchange can fill the ghost cells around the trimmed block without copying it, so a loop keeps
its storage from step to step. This must be invisible: nothing else may refer to the block, or to
the memory around it.
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
    """Return the memory around the wanted blocks, shaped as extended blocks.

    None unless each wanted block has such memory, and only the mapping ``blocks`` refers to it.
    """
    if not plan.corners:  # they must be zero
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
    """Count the references to a block, and to the memory of which it is a view."""
    block = blocks[index]
    whole = block.base
    return sys.getrefcount(block), sys.getrefcount(whole)


ALONE = _references({(): np.empty(2)[1:]}, ())
"""The counts if the view in its mapping is the only reference."""


def _is_middle(plan: HaloPlan, index: Index, block: Array, whole: Array) -> bool:
    """Whether a block is at its place in its extended block."""
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
