"""Products whose operands travel in half precision: the error, and the bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.algorithms.summa.choose import plan_summa, traffic, workspace
from dask_dgpu.algorithms.summa.plan import aligned, schedule
from dask_dgpu.algorithms.summa.rank import summa_rank
from dask_dgpu.algorithms.summa.wire import ENCODED, Half, Sent, encoding
from dask_dgpu.comm.local import run_local
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device import HostDevice
from dask_dgpu.kernels.half import FORMATS
from graph_opt.model.cost import HOST
from tests.algorithms.test_summa import Problem, check_traffic, problem, problems
from tests.support.profiles import examples
from tests.support.recording import Ledger, RecordingComm

Array = Any
PRECISIONS = st.sampled_from(["float16", "bfloat16"])


def halved(case: Problem, dtype: Any, **choices: Any) -> Problem:
    """The same product in half precision."""
    a, b = (
        replace(operand, encoding=encoding(dtype, axis))
        for axis, operand in enumerate(case.plan.operands)
    )
    machine = replace(HOST, one_sided=True)
    plan = plan_summa(a, b, case.plan.dtype, case.plan.size, machine, **choices)
    return replace(case, plan=plan)


def run(case: Problem) -> tuple[Array, list[Ledger], Sent]:
    """Multiply on ranks that are threads; return the product, and what was sent."""

    def rank_program(comm: Comm) -> tuple[Any, Ledger, Sent]:
        recording, sent = RecordingComm(comm), Sent()
        mine = case.owned(0, comm.rank), case.owned(1, comm.rank)
        with np.errstate(all="ignore"):
            blocks = summa_rank(case.plan, recording, HostDevice(), *mine, sent=sent)
        return blocks, recording.ledger, sent.total(comm, HostDevice())

    results = run_local(case.plan.size, rank_program)
    whole = case.whole({index: block for part, *_ in results for index, block in part.items()})
    return whole, [ledger for _, ledger, _ in results], results[0][2]


def norms(values: Array, axis: int) -> Array:
    wide = values.astype(np.longdouble)
    return np.sqrt((wide * wide).sum(axis=axis))


def bound(case: Problem) -> Array:
    """The error that ``explain`` states."""
    wire = case.plan.a.encoding
    assert isinstance(wire, Half)
    each = np.outer(norms(case.a, 1), norms(case.b, 0))
    k = case.a.shape[1]
    return 2 * wire.eps * np.sqrt(k) * each + k * np.finfo(case.plan.dtype).smallest_subnormal


def exact(case: Problem) -> Array:
    return case.a.astype(np.longdouble) @ case.b.astype(np.longdouble)


@examples(150)
@given(problems(list(ENCODED)), PRECISIONS)
def test_friendly_data(case: Problem, dtype: str) -> None:
    case = halved(case, dtype)
    whole, ledgers, sent = run(case)
    assert np.all(abs(whole - exact(case)) <= bound(case))
    assert sent.lost == 0
    for rank, ledger in enumerate(ledgers):
        check_traffic(case.plan, rank, ledger)
    assert workspace(case.plan) >= max(
        (step.receives.nbytes for step in schedule(case.plan, 0)), default=0
    )


@examples(150)
@given(problems(list(ENCODED)), PRECISIONS, st.integers(0, 2**32))
def test_hostile_data(case: Problem, dtype: str, seed: int) -> None:
    """1e30 beside 1e-30: in one row, in different rows, and in both operands."""
    rng = np.random.default_rng(seed)
    for values in (case.a, case.b):
        most = 140.0 if values.dtype == "float64" == case.plan.dtype else 17.0
        exponents = rng.uniform(-2 * most, most, values.shape)
        if rng.random() < 0.5:
            exponents = np.round(exponents[:, :1] / most) * most + rng.uniform(-1, 1, values.shape)
        values[...] = rng.standard_normal(values.shape) * 10.0**exponents
    whole, *_ = run(halved(case, dtype))
    assert np.isfinite(whole).all()
    assert np.all(abs(whole - exact(case)) <= bound(halved(case, dtype)))


@examples(60)
@given(problems(list(ENCODED)), PRECISIONS, st.integers(0, 2**32))
def test_nan_and_infinity_are_where_numpy_has_them(case: Problem, dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for values in (case.a, case.b):
        tiny = 1e-30 if values.dtype == np.float32 else 1e-300  # too small beside 1
        special = rng.choice([np.nan, np.inf, -np.inf, 0.0, tiny, -tiny], values.shape)
        values[...] = np.where(rng.random(values.shape) < 0.1, special, values)
    whole, *_ = run(halved(case, dtype))
    expected = case.expected
    np.testing.assert_array_equal(np.isnan(whole), np.isnan(expected))
    np.testing.assert_array_equal(whole[np.isinf(expected)], expected[np.isinf(expected)])
    np.testing.assert_array_equal(np.isinf(whole), np.isinf(expected))


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [(4, 1, 1), (1, 4, 1), (2, 2, 1), (1, 1, 4), (2, 1, 2)])
@pytest.mark.parametrize(("dtype", "share"), [("float32", 2), ("float64", 4)])
def test_half_or_a_quarter_of_the_bytes_travel(
    mesh: tuple[int, int, int], dtype: str, share: int
) -> None:
    owners = [(at * 7) % 4 for at in range(16)]
    dense = problem((256, 512, 128), 4, dtype, owners=owners, mesh=mesh, steps=2)
    encoded = halved(dense, "float16").plan.operands
    case = replace(dense, plan=replace(dense.plan, a=encoded[0], b=encoded[1]))
    whole, ledgers, sent = run(case)
    assert np.all(abs(whole - exact(case)) <= bound(case))
    moved, before = (
        sum(int(step[0].sum()) for step in traffic(each.plan)) for each in (case, dense)
    )
    exponents = [
        2 * piece.shape[piece.operand]
        for rank in range(4)
        for step in schedule(case.plan, rank)
        for pieces in step.sends
        for piece in pieces
    ]
    assert moved == before // share + sum(map(aligned, exponents))
    assert moved < 1.13 * before / share
    assert (sent.nbytes, sent.exact_bytes) == (before // share + sum(exponents), before)
    for rank, ledger in enumerate(ledgers):
        check_traffic(case.plan, rank, ledger)


@pytest.mark.parametrize("dtype", FORMATS)
def test_own_blocks_are_not_rounded(dtype: str) -> None:
    case = halved(problem((29, 31, 37), 1), dtype)
    assert (case.run()[0][1].bytes_sent, case.plan.one_sided) == (0, False)
    np.testing.assert_allclose(run(case)[0], exact(case).astype(float), rtol=1e-12, atol=1e-12)


def test_lost_precision_is_counted() -> None:
    case = halved(problem((8, 8, 8), 2, owners=[0] * 16), "float16", mesh=(2, 1, 1), steps=1)
    case.a[:, 0], case.b[0] = 1e30, 1e30
    _, _, sent = run(case)
    moved = sum(
        int(np.prod(piece.shape)) for pieces in schedule(case.plan, 0)[0].sends for piece in pieces
    )
    assert moved > 0
    assert 0 < sent.lost < moved


@pytest.mark.parametrize("shape", [(0, 5, 7), (5, 0, 7), (5, 7, 0), (1, 1, 1)])
def test_empty_and_tiny(shape: tuple[int, int, int]) -> None:
    case = halved(problem(shape, 3), "bfloat16")
    assert np.all(abs(run(case)[0] - exact(case)) <= bound(case))
