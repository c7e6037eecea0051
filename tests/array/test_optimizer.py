"""An optimizer with a bug leaves graphs to Dask; one with nothing to replace takes no time."""

from __future__ import annotations

import warnings
from typing import Any

import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu
from dask_dgpu import optimizer
from dask_dgpu.planner import decisions
from graph_opt.dask_graph import reader

A = np.random.default_rng(0).random((12, 10))
X = da.from_array(A, chunks=(5, 4))


def fail(*arguments: Any) -> Any:
    raise RuntimeError("a bug")


@pytest.mark.parametrize(
    ("module", "part"),
    [(reader, "find"), (decisions, "predict"), (reader, "insert"), (optimizer, "finish")],
)
def test_a_bug_leaves_the_graph_to_dask(
    module: Any, part: str, monkeypatch: pytest.MonkeyPatch, gangs: list[str]
) -> None:
    monkeypatch.setattr(module, part, fail)
    with (
        dgpu.enable(local_ranks=3, when="always", on_error="fallback"),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        np.testing.assert_allclose((X @ X.T + 1).compute(), A @ A.T + 1)
        _, info = dgpu.jacobi(da.zeros_like(X), X, max_iterations=10)
    assert info.iterations == 10
    assert {str(warning.message) for warning in caught} == {
        "dask_dgpu left a graph to Dask: RuntimeError: a bug"
    }
    assert gangs == []
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        with pytest.raises(RuntimeError, match="a bug"):
            (X @ X.T + 1).compute()
        with pytest.raises(RuntimeError, match="a bug"):
            dgpu.jacobi(da.zeros_like(X), X, max_iterations=10)


def test_maps_are_not_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "insert", fail)
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        np.testing.assert_array_equal((X * 2 + 1).compute(), A * 2 + 1)
