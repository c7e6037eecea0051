"""What several tests of fused tasks look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from dask_dgpu.kernels.fused import evaluate
from dask_dgpu.runtime import fused
from graph_opt.model.expression import Expression


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[Expression]:
    """The expressions that tasks have evaluated, one entry a block."""
    found: list[Expression] = []

    def noting(expression: Expression, blocks: Sequence[Any]) -> Any:
        found.append(expression)
        return evaluate(expression, blocks)

    monkeypatch.setattr(fused, "evaluate", noting)
    return found
