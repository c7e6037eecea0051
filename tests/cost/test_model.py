"""Estimates of products: those of the plans that gangs run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.cost import ClusterConfig, CostModel
from dask_dgpu.cost.model import STRATEGIES
from tests.support.clusters import explained, facts_of

lengths = st.integers(0, 5000)
MODEL = CostModel(ClusterConfig(facts_of(6)))


@pytest.mark.parametrize(
    ("strategy", "mesh"),
    [("row", (6, 1, 1)), ("column", (1, 6, 1)), ("summa", (3, 2, 1)), ("inner", (1, 1, 6))],
)
def test_a_strategy_is_a_mesh(strategy: str, mesh: tuple[int, ...]) -> None:
    estimate = MODEL.estimate_matmul(1024, 1024, 1024, strategy)
    assert estimate.strategy == strategy
    assert f"mesh {mesh}" in estimate.text


@given(lengths, lengths, lengths, st.sampled_from(["float32", "complex128", "int64", "float16"]))
def test_the_best_is_the_first_of_the_report(M: int, K: int, N: int, dtype: str) -> None:
    report = MODEL.report(M, K, N, dtype=dtype, chunks=4)
    seconds = [each.seconds for each in report.estimates]
    assert seconds == sorted(seconds)
    assert min(seconds) > 0
    assert MODEL.best_matmul(M, K, N, dtype=dtype, chunks=4) == report.estimates[0]
    assert sorted(each.strategy for each in report.estimates) == sorted((*STRATEGIES, "dask"))


def test_partial_sums_larger_than_panels_leave_panels_wide() -> None:
    """More panels would not make the partial sums of a forced strategy smaller."""
    estimate = MODEL.estimate_matmul(20_000, 20_000, 20_000, "inner")
    assert int(estimate.text.split(", ")[-1].split()[0]) <= 16


def test_an_estimate_is_the_prediction_of_the_optimizer() -> None:
    model = CostModel(ClusterConfig(facts_of(4)))
    x, y = (da.from_array(np.zeros((1024, 1024)), chunks=256, name=name) for name in "xy")
    places = {(name, i, j): i for name in "xy" for i in range(4) for j in range(4)}
    ((_, predicted),) = explained(x @ y, places=places, when="always").regions
    estimate = model.estimate_matmul(1024, 1024, 1024, chunks=4)
    assert estimate.seconds == pytest.approx(predicted.seconds)
    assert (estimate.moved_bytes, estimate.text) == (predicted.moved_bytes, predicted.text)
    plain = next(e for e in model.report(1024, 1024, 1024, chunks=4).estimates if not e.peak_bytes)
    assert plain.seconds == pytest.approx(predicted.dask_seconds)


def test_a_slow_network_favours_strategies_that_send_little() -> None:
    slow = replace(MODEL.config.facts, figures=(("bandwidth", 1e5),))
    report = CostModel(ClusterConfig(slow)).report(100_000, 64, 64)
    by_name = {each.strategy: each.moved_bytes for each in report.estimates}
    assert by_name["auto"] < by_name["column"]


def test_a_report_is_a_table() -> None:
    report = MODEL.report(512, 4096, 512)
    text = str(report)
    assert "(512, 4096) @ (4096, 512) float64 on 6 workers" in text
    assert all(name in text for name in (*STRATEGIES, "dask", "received", "held"))
    assert "<td>dask</td>" in report._repr_html_()


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ((-1, 2, 3), ValueError, "expected M to be an integer of at least 0, got -1"),
        ((1, 2.5, 3), TypeError, "expected K to be an integer of at least 0, got 2.5"),
        ((1, 2, 3, "rows"), ValueError, r"unknown strategy 'rows' \(did you mean 'row'\?\)"),
    ],
)
def test_bad_arguments(arguments: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        MODEL.estimate_matmul(*arguments)
    with pytest.raises(TypeError, match="expected dtype to be a dtype, got 'number'"):
        MODEL.estimate_matmul(1, 2, 3, dtype="number")
    with pytest.raises(ValueError, match="expected chunks to be an integer of at least 1, got 0"):
        MODEL.report(1, 2, 3, chunks=0)


def test_a_configuration_is_required() -> None:
    with pytest.raises(TypeError, match="expected config to be a ClusterConfig, got 'x'"):
        CostModel("x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected facts to be ClusterFacts, as from detect, got"):
        ClusterConfig("x")  # type: ignore[arg-type]
