"""Sums of blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask_dgpu.algorithms.kahan_sum.plan import SumPlan
from dask_dgpu.algorithms.kahan_sum.rank import finish_block, sum_blocks
from graph_opt.model.layout import Index

Array = Any
Blocks = Mapping[Index, Array]


def kahan_sum_reference(plan: SumPlan, blocks: Blocks) -> dict[Index, Array]:
    """Sum all blocks of all ranks, in the order in which the ranks would."""
    ranks = range(plan.size)
    each = [sum_blocks(plan, {at: blocks[at] for at in plan.source.owned(r)}) for r in ranks]
    return {
        index: finish_block(plan, [each[rank][index] for rank in adding])
        for index, adding in plan.adding.items()
    }
