"""The programs of the suite of benchmarks give NumPy's results, whatever runs as a gang."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu
from tests.support.benchmarks import benchmark

suite, suite_harness = benchmark("suite"), benchmark("suite_harness")

SIZES = suite_harness.Sizes(workers=2, n=64, m=64)


@pytest.mark.parametrize("name", suite_harness.PROGRAMS)
def test_programs_give_the_results_of_numpy(name: str) -> None:
    program = suite_harness.PROGRAMS[name]
    rng = da.random.default_rng(0)
    inputs = [suite.drawn(rng, each, SIZES).persist(scheduler="sync") for each in program.inputs]
    with dgpu.enable(local_ranks=2, when="always", on_error="raise"):
        results = as_tuple(program.function(da, *inputs))
        found = [result.compute(scheduler="threads") for result in results]
    doubled = [x.compute(scheduler="sync").astype(float) for x in inputs]
    wanted = as_tuple(program.function(np, *doubled))
    for result, one, other in zip(results, found, wanted, strict=True):
        assert one.dtype == result.dtype
        assert suite.difference(one, np.asarray(other)) <= program.tolerance


def test_results_of_another_shape_differ() -> None:
    assert suite.difference(np.ones(2), np.ones(3)) == np.inf
    assert suite.difference(np.array([1.0, 2.0]), np.array([1.0, 4.0])) == 0.5


def as_tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def test_a_program_is_slower_beyond_the_noise() -> None:
    assert found(ours=1.2).slower
    assert not found(ours=1.05).slower
    assert not found(ours=1.2, again=1.3).slower


def test_predictions_are_compared_with_seconds_after_the_graph_was_built() -> None:
    assert found(ours=1.2).misses() == pytest.approx({"ours": 0.6 / 1.1, "plain": 2 / 0.9})


def found(ours: float, again: float = 1.0) -> Any:
    seconds = {"ours": [ours], "plain": [1.0], "plain again": [again]}
    built = {way: [0.1] for way in seconds}
    return suite.Found("program", seconds, built, {"ours": ours / 2, "plain": 2.0})
