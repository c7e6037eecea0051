"""Dask's own tests with dask_dgpu enabled: products, rechunks, linear algebra, reductions, core."""

from __future__ import annotations

import pytest

from tests.support.compat import compare, confirmed

PRODUCTS = ["test_routines.py", "test_atop.py", "test_optimization.py"]
CORE = ["test_array_core.py", "test_array_function.py"]
# Half a minute instead of over one: what does not differ in how its graph is made is left out.
REDUCTIONS = ["test_reductions.py"]
RECHUNKS = ["test_rechunk.py", "test_reshape.py"]
OVERLAPS = ["test_overlap.py"]
# It counts the tasks of a sum, which is a gang with when="always"; its value is the same.
NO_COUNTS = ["--deselect", "test_array_core.py::test_blockwise_fusion"]
FEWER = ["-k", "not nan and not quantile and not median and not arg and not topk and not cum"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("tests", "arguments", "rewritten"),
    [
        (PRODUCTS, [], 20),
        (["test_linalg.py"], [], 100),
        (["test_fft.py"], [], 0),
        (CORE, NO_COUNTS, 5),
        (REDUCTIONS, FEWER, 0),
        (RECHUNKS, [], 25),
        (OVERLAPS, [], 100),
    ],
    ids=["products", "linear algebra", "transforms", "core", "reductions", "rechunks", "overlaps"],
)
def test_same_outcomes(tests: list[str], arguments: list[str], rewritten: int) -> None:
    comparison = compare(tests, arguments)
    assert confirmed(comparison).differences == {}
    assert "passed" in comparison.with_it.outcomes.values()
    assert comparison.with_it.rewritten >= rewritten


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_same_outcomes_of_dask_array() -> None:
    """Without the tests of its protocol for another scheduler, which plans nothing here."""
    comparison = compare(arguments=["-k", "not frisky"], package="dask_array")
    assert confirmed(comparison, "dask_array").differences == {}
    assert comparison.with_it.rewritten >= 1000
