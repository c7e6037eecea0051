"""Products whose operands travel without their zeros: the same bits, and fewer bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.algorithms.summa.choose import plan_summa, traffic
from dask_dgpu.algorithms.summa.wire import EXACT, encoding
from dask_dgpu.kernels import gemm
from graph_opt.model.cost import HOST
from tests.algorithms.test_summa import Problem, problem, problems
from tests.support.profiles import examples

Array = Any
DTYPES = ["int8", "float16", "float32", "float64", "complex64", "complex128"]


def without_zeros(case: Problem, threshold: float, **choices: Any) -> Problem:
    """The same product with operands that travel without their zeros."""
    a, b = (
        replace(operand, encoding=encoding("exact", axis, threshold))
        for axis, operand in enumerate(case.plan.operands)
    )
    machine = replace(HOST, one_sided=True)
    plan = plan_summa(a, b, case.plan.dtype, case.plan.size, machine, **choices)
    assert not plan.one_sided
    return replace(case, plan=plan)


def dense(case: Problem) -> Problem:
    """The same plan, with whole messages."""
    a, b = (replace(operand, encoding=EXACT) for operand in case.plan.operands)
    return replace(case, plan=replace(case.plan, a=a, b=b))


def product(case: Problem) -> tuple[Array, int]:
    """Return the bits of a product, and the bytes that all ranks have sent."""
    results = case.run()
    whole = case.whole({index: block for part, *_ in results for index, block in part.items()})
    return whole.view("u1"), sum(ledger.bytes_sent for _, ledger, _ in results)


def thin_out(case: Problem, rng: np.random.Generator, density: float) -> None:
    for values in (case.a, case.b):
        values[rng.random(values.shape) >= density] = 0


@examples(120)
@given(problems(DTYPES), st.floats(0, 1), st.sampled_from([0.01, 0.5, 1.0]), st.integers(0, 2**32))
def test_no_bit_changes(case: Problem, density: float, threshold: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    thin_out(case, rng, density)
    for values in (case.a, case.b):
        if values.dtype.kind in "fc" and rng.random() < 0.3:
            special = rng.choice([np.nan, np.inf, -np.inf, -0.0], values.shape)
            values[...] = np.where(rng.random(values.shape) < 0.1, special, values)
        if values.size and rng.random() < 0.5:  # whole blocks are empty
            values[: len(values) // 2] = 0
    case = without_zeros(case, threshold)
    found, _ = product(case)
    expected, _ = product(dense(case))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("mesh", [(4, 1, 1), (1, 4, 1), (2, 2, 1), (1, 1, 4), (2, 1, 2)])
@pytest.mark.parametrize(("dtype", "share"), [("float32", 0.27), ("float64", 0.25)])
def test_a_fifth_of_the_elements_are_a_quarter_of_the_bytes(
    mesh: tuple[int, int, int], dtype: str, share: float
) -> None:
    owners = [(at * 7) % 4 for at in range(16)]
    case = problem((256, 512, 128), 4, dtype, owners=owners)
    thin_out(case, np.random.default_rng(0), 0.2)
    case = without_zeros(case, 0.5, mesh=mesh, steps=2)
    found, sent = product(case)
    expected, before = product(dense(case))
    np.testing.assert_array_equal(found, expected)
    moved = sum(int(traffic(case.plan, step)[0].sum()) for step in range(case.plan.steps))
    assert 0 < sent - (before - moved) < share * moved  # the rest adds layers


def test_dense_operands_travel_whole() -> None:
    owners = [(at * 7) % 4 for at in range(16)]
    case = without_zeros(problem((64, 64, 64), 4, owners=owners), 0.5, mesh=(2, 2, 1), steps=2)
    found, sent = product(case)
    expected, before = product(dense(case))
    np.testing.assert_array_equal(found, expected)
    assert before < sent < before + 4096  # the counts


def test_empty_blocks_neither_travel_nor_are_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    multiplied: list[int] = []
    accumulate = gemm.accumulate_group

    def noted(products: Any) -> None:
        multiplied.append(len(products))
        accumulate(products)

    monkeypatch.setattr(gemm, "accumulate_group", noted)
    case = problem((64, 64, 64), 4, owners=[at % 4 for at in range(16)])
    for values in (case.a, case.b):
        values[...] = 0
    case = without_zeros(case, 0.5, mesh=(4, 1, 1), steps=4)
    _, sent = product(case)
    assert sum(multiplied) == 0
    assert sent < 4096  # the counts
    case.a[:16] = 1  # only the first block row
    found, _ = product(case)
    assert not found.any()
    assert sum(multiplied) == 0
    case.b[...] = 1
    found, _ = product(case)
    expected, _ = product(dense(case))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("special", [np.inf, np.nan])
def test_an_empty_block_times_infinity_is_nan(special: float) -> None:
    case = problem((64, 64, 64), 4, owners=[at % 4 for at in range(16)])
    case.a[...] = 0
    case.b[...] = special
    case = without_zeros(case, 0.5, mesh=(4, 1, 1), steps=4)
    found, _ = product(case)
    assert np.isnan(found.view("f8")).all()
