"""Random trees of array operations: NumPy, plain Dask and dask_dgpu agree.

``pytest tests/fuzz --trees 5000`` for a long run; ``--seed N --trees 1`` for one tree again.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest

import dask_dgpu as dgpu
from tests.fuzz.compare import difference
from tests.fuzz.conftest import CLUSTER_EVERY, N_WORKERS
from tests.fuzz.report import reproduction, smallest
from tests.fuzz.tree import Tree, grow
from tests.fuzz.values import both, dask_only
from tests.fuzz.ways import (
    SETTINGS,
    Outcome,
    Way,
    cluster_way,
    expression_way,
    failure,
    local_way,
    numpy_way,
    plain_expression_way,
)


def check(seed: int, way: Way, n_workers: int = 0) -> None:
    tree = grow(seed)
    wrong = failure(tree, way)
    if wrong is not None:
        part = smallest(tree, way)
        pytest.fail(
            f"seed {seed}: {failure(part, way) or wrong}\n\n{reproduction(part, n_workers)}",
            pytrace=False,
        )


@pytest.mark.slow
def test_tree(tree_seed: int, request: pytest.FixtureRequest) -> None:
    if tree_seed % CLUSTER_EVERY:
        check(tree_seed, local_way)
    else:
        client = request.getfixturevalue("fuzz_client")
        check(tree_seed, cluster_way(client), N_WORKERS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100))
def test_tree_of_expressions(seed: int) -> None:
    """The same trees of dask_array's arrays: against its own results, and NumPy's."""
    wrong = failure(grow(seed), expression_way, plain_expression_way)
    assert wrong is None, f"seed {seed}: {wrong}"


@pytest.mark.filterwarnings("ignore::dask.array.core.PerformanceWarning")
def test_trees_are_rewritten() -> None:
    """A fuzzer whose graphs are left to Dask would find nothing."""
    pieces = 0
    for seed in range(30):
        tree = grow(seed)
        with dgpu.enable(**SETTINGS, **tree.settings):
            lazy = tree.build("ours")
            pieces += any(dgpu.explain(each).rewritten for each in lazy)
    assert pieces > 15


def test_a_wrong_result_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """Its smallest part is found, and the program for it prints what each way computes."""

    def wrong(tree: Tree) -> Outcome:
        outcome = local_way(tree)
        return replace(outcome, arrays=tuple(a + (a.ndim == 1) for a in outcome.arrays))

    steps = {
        "v0": dask_only("numbers(1, (5, 3), 'f8')", "da.from_array(numbers(1, (5, 3), 'f8'))"),
        "v1": both("v0 * 2"),
        "v2": both("xp.transpose(v0)"),
        "v3": both("xp.sum(v0, axis=0)"),
        "v4": both("v3 @ v2"),
    }
    tree = Tree(7, steps, dict.fromkeys(steps, 0.0), ("v4", "v1"), {"local_ranks": 2}, "sync")
    part = smallest(tree, wrong)
    assert list(part.steps) == ["v0", "v3"]
    text = failure(part, wrong)
    assert text is not None
    assert "v3, against NumPy: 3 of 3 elements differ by more than 0" in text
    with np.errstate():  # the program changes it
        exec(reproduction(part), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert printed == 3 * f"{numpy_way(part).arrays[0]}\n"


@pytest.mark.parametrize(
    ("actual", "expected", "error", "alike"),
    [
        ([1.0, 2.0], [1.0, 2.0 + 1e-9], 1e-8, True),
        ([1.0, 2.0], [1.0, 2.0 + 1e-7], 1e-8, False),
        ([nan, inf], [nan, inf], 0.0, True),
        ([nan, inf], [inf, nan], 0.0, False),
        ([inf], [-inf], 1.0, False),
        ([complex(inf, nan)], [complex(nan, nan)], 0.0, True),
        ([complex(inf, nan)], [1.0 + 0j], 9.0, False),
        ([1, 2], [1, 3], 9.0, False),
        ([1, 2], [[1, 2]], 9.0, False),
        ([], [], 0.0, True),
    ],
)
def test_difference(actual: object, expected: object, error: float, alike: bool) -> None:
    assert (difference(actual, expected, error) is None) is alike
