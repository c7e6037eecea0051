"""Products whose operands travel without zeros: the same bits, and fewer bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.algorithms.summa.choose import plan_summa, traffic
from dask_dgpu.algorithms.summa.plan import aligned, schedule
from dask_dgpu.algorithms.summa.wire import EXACT, Exact, Sent, Sparse, encoding
from dask_dgpu.kernels import gemm
from graph_opt.model.cost import HOST
from tests.algorithms.test_summa import FLOATS, INTEGERS, Problem, problem, problems
from tests.algorithms.test_summa_wire import run
from tests.support.profiles import examples
from tests.support.recording import Ledger

Array = Any
MESHES = [(4, 1, 1), (1, 4, 1), (2, 2, 1), (1, 1, 4), (2, 1, 2)]


def coded(case: Problem, form: Exact) -> Problem:
    """The same product by the same plan, with another form of messages."""
    a, b = (replace(operand, encoding=form) for operand in case.plan.operands)
    return replace(case, plan=replace(case.plan, a=a, b=b, one_sided=False))


def thinned(case: Problem, density: float, seed: int) -> Problem:
    """The same product of operands with zeros, in elements and in whole blocks."""
    rng = np.random.default_rng(seed)
    for which, values in enumerate((case.a, case.b)):
        values[...] = np.where(rng.random(values.shape) < density, values, 0)
        for block in case.blocks(which).values():
            if rng.random() < 0.5:
                block[...] = 0
    return case


def same_bits(case: Problem, form: Exact) -> tuple[list[Ledger], list[Ledger], Sent]:
    """Check the product against the dense one; return what both sent."""
    (value, ledgers, sent), (expected, dense, before) = (
        run(coded(case, each)) for each in (form, EXACT)
    )
    assert value.tobytes() == expected.tobytes()
    assert sent.exact_bytes == before.nbytes
    return ledgers, dense, sent


@examples(150)
@given(
    problems(INTEGERS + FLOATS),
    st.sampled_from([0, 0.05, 0.3, 0.9]),
    st.sampled_from([0.05, 0.5, 1.0]),
    st.integers(0, 99),
)
def test_the_same_bits(case: Problem, density: float, threshold: float, seed: int) -> None:
    ledgers, dense, _ = same_bits(thinned(case, density, seed), Sparse(threshold))
    for rank, (ledger, other) in enumerate(zip(ledgers, dense, strict=True)):
        steps = schedule(case.plan, rank)
        table = 8 * sum(len(pieces) for step in steps for pieces in step.sends)
        assert ledger.bytes_sent <= other.bytes_sent + table
        told = any(any(step.sends) or any(step.receives) for step in steps)
        assert ledger.calls["exchange"] <= other.calls["exchange"] + told


@examples(100)
@given(problems(["float32", "float64", "complex64"]), st.integers(0, 99))
def test_infinities_and_signs_of_zeros(case: Problem, seed: int) -> None:
    """Infinity and NaN times a block of zeros, -0.0, and products that underflow."""
    rng = np.random.default_rng(seed)
    thinned(case, 0.5, seed)
    tiny = np.finfo(case.plan.dtype).smallest_subnormal
    special = rng.choice(np.array([np.inf, np.nan, -0.0, -tiny, tiny]), 4)
    for which, values in enumerate((case.a, case.b)):
        blocks = list(case.blocks(which).values())
        for block in blocks:
            if block.size and rng.random() < 0.3:
                block[rng.integers(len(block)), rng.integers(block.shape[1])] = special[which]
        values[...] = np.where(rng.random(values.shape) < 0.05, special[2 + which], values)
    same_bits(case, Sparse())


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize(("dtype", "most"), [("float32", 0.4), ("float64", 0.4), ("int32", 0.4)])
def test_bytes_at_80_percent_zeros(mesh: Any, dtype: str, most: float) -> None:
    owners = [(at * 7) % 4 for at in range(16)]
    case = problem((256, 512, 128), 4, dtype, owners=owners, mesh=mesh, steps=2)
    rng = np.random.default_rng(1)
    for values in (case.a, case.b):
        values[...] = np.where(rng.random(values.shape) < 0.2, values, 0)
    ledgers, dense, sent = same_bits(case, Sparse(0.5))
    layers = sum(each.bytes_sent for each in dense) - sum(
        int(step[0].sum()) for step in traffic(coded(case, EXACT).plan)
    )  # partial sums travel as they are
    moved = sum(each.bytes_sent for each in ledgers) - layers
    assert 0 < moved < most * sent.exact_bytes
    assert sent.nbytes <= moved <= sent.nbytes + 16 * sum(map(len, _pieces(case)))


def _pieces(case: Problem) -> list[list[Any]]:
    steps = [step for rank in range(case.plan.size) for step in schedule(case.plan, rank)]
    return [pieces for step in steps for pieces in step.sends]


def test_the_upper_bound_is_the_dense_product() -> None:
    case = problem((60, 64, 52), 4, mesh=(2, 2, 1), steps=2)
    plans = [coded(case, each).plan for each in (EXACT, Sparse())]
    for step in range(2):
        dense, bound = (traffic(plan)[step] for plan in plans)
        np.testing.assert_array_equal(dense, bound)
    ledgers, dense_, sent = same_bits(case, Sparse())  # without zeros: all travels, and the table
    table = 8 * sum(map(len, _pieces(case)))
    assert sent.nbytes == sent.exact_bytes + table
    before = sum(each.bytes_sent for each in dense_)
    assert sum(each.bytes_sent for each in ledgers) == before + table


def test_empty_blocks_are_neither_sent_nor_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    case = problem((64, 64, 64), 4, mesh=(4, 1, 1), steps=4)
    for values in (case.a, case.b):  # block diagonal
        blocks = np.kron(np.eye(4), np.ones((16, 16)))
        values[...] = np.where(blocks, values, 0)
    products: list[Any] = []
    original = gemm.accumulate
    monkeypatch.setattr(gemm, "accumulate", lambda *each: (products.append(1), original(*each)))
    _, _, sent = run(coded(case, Sparse(0.5)))
    steps = case.plan.steps  # each reads one block row of b, and meets one of the four of a
    assert (len(products), sent.skipped) == (steps, 3 * steps)
    dense = [piece for pieces in _pieces(case) for piece in pieces]
    assert 0 < sent.empty < len(dense)
    kept = sum(aligned(piece.nbytes) for piece in dense if piece.block[0] == piece.block[1])
    assert sent.nbytes == kept + 8 * len(dense)


@pytest.mark.parametrize(("blocks", "steps"), [(1, 1), (4, 4), (5, 8), (40, 16)])
def test_panels_are_as_deep_as_blocks(blocks: int, steps: int) -> None:
    case = problem((64, 80, 64), 4, parts=(4, blocks, 4), mesh=(4, 1, 1))
    a, b = coded(case, Sparse(0.5)).plan.operands
    counts = [
        plan_summa(*pair, "float64", 4, HOST, mesh=(4, 1, 1)).nominal_steps
        for pair in ((a, b), (coded(case, Sparse(1.0, 0.5)).plan.operands))
    ]
    assert counts[0] >= steps
    assert counts[1] == case.plan.nominal_steps  # "auto" costs no latency


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_infinity_times_an_empty_block_is_nan(value: float) -> None:
    case = problem((8, 8, 8), 2, mesh=(2, 1, 1), steps=1)
    case.a[...], case.b[3, 5] = 0, value
    with np.errstate(all="ignore"):
        whole, _, sent = run(coded(case, Sparse()))
    assert np.isnan(whole[:, 5]).all()
    assert not np.delete(whole, 5, axis=1).any()
    assert sent.skipped == 0


def test_auto_depends_on_the_network() -> None:
    network = replace(HOST, one_sided=False, memory_bandwidth=48e9)
    assert encoding("exact", 0, "auto", replace(network, bandwidth=2e9)) == EXACT
    assert encoding("exact", 0, "auto", replace(network, bandwidth=1e8, one_sided=True)) == EXACT
    slow = encoding("exact", 0, "auto", replace(network, bandwidth=1e9))
    assert isinstance(slow, Sparse)
    assert slow.saving == 0.5
    assert slow.chosen(1024, 700, 4)[0] is None  # 30 % fewer bytes do not pay
    assert slow.chosen(1024, 300, 4)[1] == 128 + 1200
    assert slow.chosen(1024, 0, 4)[1] == 0


def test_auto_packs_what_pays() -> None:
    case = problem((64, 64, 64), 4, "float32", mesh=(2, 2, 1), steps=2)
    case.a[...] = np.where(np.random.default_rng(0).random((64, 64)) < 0.1, case.a, 0)
    _, _, sent = same_bits(case, Sparse(1.0, 0.5))
    assert sent.exact_bytes / 2 < sent.nbytes < 0.7 * sent.exact_bytes  # b has no zeros
