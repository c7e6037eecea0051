"""A new operation needs its own files and one line in the table, nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu
from dask_dgpu.operations import OPERATIONS
from tests.operations.normalize.array import normalize
from tests.operations.normalize.operation import NORMALIZE

X = np.random.default_rng(2).normal(size=(23, 17))


@pytest.fixture(autouse=True)
def line_in_the_table() -> Iterator[None]:
    OPERATIONS["normalize"] = NORMALIZE
    yield
    del OPERATIONS["normalize"]


@pytest.mark.parametrize("ranks", [1, 3])
def test_runs_as_a_gang(ranks: int) -> None:
    with dgpu.enable(local_ranks=ranks, when="always", on_error="raise"):
        y = normalize(da.from_array(X, chunks=(7, 5)))
        ((piece, _),) = dgpu.explain(y).rewritten
        np.testing.assert_allclose(y.compute(), X / abs(X).max(), rtol=1e-15)
    assert piece.operation == "normalize"


def test_is_part_of_a_region() -> None:
    with dgpu.enable(local_ranks=2, when="always", on_error="raise"):
        x = da.from_array(X, chunks=(7, 5))
        y = normalize(x @ x.T + 1)
        assert len(dgpu.explain(y).rewritten) == 2
        product = X @ X.T + 1
        np.testing.assert_allclose(y.compute(), product / abs(product).max(), rtol=1e-12)


def test_falls_back_to_dask() -> None:
    y = normalize(da.from_array(X, chunks=(7, 5)))
    np.testing.assert_allclose(y.compute(), X / abs(X).max(), rtol=1e-15)


def test_takes_six_files_at_most() -> None:
    files = {path.name for path in Path(__file__).parent.glob("*.py")} - {"__init__.py"}
    table, public_names = "dask_dgpu/operations/__init__.py", "dask_dgpu/__init__.py"
    assert files == {"array.py", "operation.py", "rank.py", "test_normalize.py"}
    assert len(files | {table, public_names}) == 6
