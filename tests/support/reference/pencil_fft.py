"""Fourier, cosine and sine transforms of blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask_dgpu.algorithms.pencil_fft.rank import RankedPencil, cropped, transform_blocks
from graph_opt.model.layout import Index
from tests.support.reference.redistribute import redistribute_reference

Array = Any
Blocks = Mapping[Index, Array]


def pencil_fft_reference(ranked: RankedPencil, blocks: Blocks) -> dict[Index, Array]:
    """Transform all blocks of all ranks, exchange after exchange, in NumPy."""
    present = cropped(blocks, ranked)
    for at, move in enumerate(ranked.moves):
        if at:
            stage = ranked.plan.stages[at - 1]
            present = transform_blocks(stage, present, overwrite=False)
        if move is not None:
            present = redistribute_reference(move, present)
    return present
