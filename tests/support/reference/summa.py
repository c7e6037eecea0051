"""Blocked matrix multiplication."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dask_dgpu.algorithms.summa.plan import SummaPlan

Array = Any
Block = tuple[int, int]
Blocks = Mapping[Block, Array]


def summa_reference(plan: SummaPlan, a: Blocks, b: Blocks) -> dict[Block, Array]:
    """Multiply with the plan's blocking and order of sums, sequentially, in NumPy."""
    partial: dict[Block, Array] = {}
    dtype = plan.accumulator
    first, second = (np.zeros((x.rows[-1], x.columns[-1]), dtype) for x in plan.operands)
    for whole, blocks, operand in zip((first, second), (a, b), plan.operands, strict=True):
        for i, j in operand.indices():
            down, along = operand.rows[i : i + 2], operand.columns[j : j + 2]
            whole[slice(*down), slice(*along)] = blocks[i, j]
    for rank in sorted(plan.places, key=lambda rank: plan.positions[rank][2]):
        rows, columns = plan.rectangle(rank)
        total = np.zeros((rows[1] - rows[0], columns[1] - columns[0]), dtype)
        for step in range(plan.steps):
            lo, hi = plan.panel(rank, step)
            total += first[slice(*rows), lo:hi] @ second[lo:hi, slice(*columns)]
        r, c, _ = plan.positions[rank]
        for i, j in plan.final_layers(r, c):
            top, left = plan.a.rows[i] - rows[0], plan.b.columns[j] - columns[0]
            bottom, right = plan.a.rows[i + 1] - rows[0], plan.b.columns[j + 1] - columns[0]
            part = total[top:bottom, left:right]
            partial[i, j] = partial[i, j] + part if (i, j) in partial else part
    return {block: value.astype(plan.dtype) for block, value in partial.items()}
