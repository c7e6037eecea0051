"""Products without zeros in messages as users call them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu
from dask_dgpu.algorithms.summa.wire import Sent
from dask_dgpu.runtime import tasks

RNG = np.random.default_rng(0)
A = np.where(RNG.random((60, 80)) < 0.1, RNG.integers(1, 9, (60, 80)), 0.0)
B = np.where(RNG.random((80, 50)) < 0.1, RNG.integers(1, 9, (80, 50)), 0.0)
X, Y = da.from_array(A, chunks=(20, 30)), da.from_array(B, chunks=(40, 20))


@pytest.mark.parametrize("threshold", [0.5, 1, "auto"])
@pytest.mark.parametrize("ranks", range(1, 8))
def test_equal_to_numpy(threshold: Any, ranks: int, gangs: list[str]) -> None:
    z = dgpu.matmul(X, Y, sparse_threshold=threshold)
    with dgpu.enable(local_ranks=ranks, on_error="raise"):
        value = z.compute(scheduler="sync")
    np.testing.assert_array_equal(value, A @ B)
    assert len(gangs) == 1


def test_without_a_gang() -> None:
    np.testing.assert_array_equal(dgpu.matmul(X, Y, sparse_threshold=0.5).compute(), A @ B)


def test_bytes_are_reported() -> None:
    tasks.details.clear()
    with dgpu.enable(local_ranks=4, on_error="raise"):
        z = dgpu.matmul(X, Y, strategy="row", sparse_threshold=0.5)
        found = dgpu.explain(z)
        z.compute(scheduler="sync")
    ((_, sent),) = tasks.details
    assert isinstance(sent, Sent)
    assert 0 < sent.nbytes < 0.4 * sent.exact_bytes
    assert sent.lost is None
    assert "parts with a density below 0.5 without zeros in messages" in str(found)
    assert found.to_dict()["rewritten"][0]["sparse_threshold"] == 0.5


def test_auto_needs_a_slow_network() -> None:
    z = dgpu.matmul(X, Y, strategy="row", sparse_threshold="auto")
    for bandwidth, there in ((1e11, False), (1e6, True)):
        with dgpu.enable(local_ranks=4, on_error="raise") as session:
            figures = (("bandwidth", bandwidth), ("memory_bandwidth", 1e10))
            facts = replace(session.optimizer.facts, figures=figures)
            with dask.config.set(array_optimize=replace(session.optimizer, facts=facts)):
                (found,) = dgpu.explain(z).to_dict()["rewritten"]
        assert ("sparse_threshold" in found) == there


def test_the_setting_of_half_precision_does_not_apply() -> None:
    z = dgpu.matmul(X, Y, strategy="row", sparse_threshold=0.5)
    with dgpu.enable(local_ranks=4, on_error="raise", matmul_wire_dtype="float16"):
        assert "float16" not in str(dgpu.explain(z))


@pytest.mark.parametrize("given", [0, -0.5, 1.5, np.nan, True, "dense", [0.5]])
def test_misuse_names_the_argument(given: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as error:
        dgpu.matmul(X, Y, sparse_threshold=given)
    assert str(error.value).startswith("expected sparse_threshold to be a number above 0")


def test_half_precision_and_zeros_do_not_combine() -> None:
    with pytest.raises(ValueError, match="expected no sparse_threshold with wire_dtype 'float16'"):
        dgpu.matmul(X, Y, sparse_threshold=0.5, wire_dtype="float16")
