"""Expressions on NumPy blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dask_dgpu.kernels.fused.nodes import evaluate_nodes
from graph_opt.model.expression import Expression

Array = Any


def evaluate_host(expression: Expression, blocks: Sequence[Array]) -> tuple[Array, ...]:
    """Evaluate an expression with NumPy's own functions."""
    return evaluate_nodes(expression, blocks)
