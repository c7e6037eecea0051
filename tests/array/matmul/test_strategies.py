"""Products with a strategy: the mesh, the value, and what cannot be divided."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal, get_args

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from tests.support.profiles import examples

Strategy = Literal["auto", "row", "column", "summa", "inner"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
NAMED = STRATEGIES[1:]
A = np.random.default_rng(0).standard_normal((11, 13))
B = np.random.default_rng(1).standard_normal((13, 7))
X, Y = da.from_array(A, chunks=(2, 5)), da.from_array(B, chunks=(4, 1))


def close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12, strict=True)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", NAMED)
@pytest.mark.parametrize("ranks", range(1, 8))
def test_a_strategy_is_a_family_of_meshes(strategy: Strategy, ranks: int, gangs: list[str]) -> None:
    z = dgpu.matmul(X, Y, strategy=strategy)
    with dgpu.enable(local_ranks=ranks, on_error="raise"):
        explanation = dgpu.explain(z)
        value = z.compute(scheduler="sync")
    rows, columns, depth = explanation.to_dict()["rewritten"][0]["mesh"]
    assert f"strategy {strategy!r}, " in str(explanation)
    match strategy:
        case "row":
            assert (rows, columns, depth) == (min(ranks, 6), 1, 1)
        case "column":
            assert (rows, columns, depth) == (1, ranks, 1)
        case "inner":
            assert (rows, columns, depth) == (1, 1, ranks)
        case _:
            assert depth == 1
            assert min(rows, columns) >= (2 if ranks >= 4 else 1)
    assert len(gangs) == 1
    close(value, A @ B)


def test_it_runs_although_plain_dask_is_predicted_to_be_quicker(gangs: list[str]) -> None:
    x, y = X.rechunk((6, 13)), Y.rechunk((13, 7))
    z = dgpu.matmul(x, y, strategy="row")
    with dgpu.enable(local_ranks=2, on_error="raise", when="cheaper"):
        (piece,) = dgpu.explain(z).to_dict()["rewritten"]
        assert piece["seconds"] > piece["dask_seconds"]
        assert dgpu.explain(dgpu.matmul(x, y)).declined
        close((z.sum(axis=0) + 1).compute(), (A @ B).sum(axis=0) + 1)
    assert len(gangs) == 1


def test_without_options_it_is_dasks_own() -> None:
    assert dgpu.matmul(X, Y).name == da.matmul(X, Y).name
    stack = da.ones((2, 3, 4), chunks=2)
    assert dgpu.matmul(stack, Y[:4, :2]).shape == (2, 3, 2)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", NAMED)
def test_without_a_gang(strategy: Strategy, gangs: list[str]) -> None:
    z = dgpu.matmul(X, Y, strategy=strategy)
    assert str(dgpu.explain(z)).startswith("dask_dgpu is not enabled")
    for scheduler in ("sync", "threads"):
        close(z.compute(scheduler=scheduler), A @ B)
    close(z[3:6, ::2].compute(), (A @ B)[3:6, ::2])
    assert gangs == []


def test_a_part_of_the_result() -> None:
    """One block row is left: fewer ranks take part."""
    z = dgpu.matmul(X, Y, strategy="row")[:2]
    with dgpu.enable(local_ranks=3, on_error="raise"):
        assert dgpu.explain(z).to_dict()["rewritten"][0]["mesh"] == (1, 1, 1)
        close(z.compute(), (A @ B)[:2])


@examples(25)
@given(st.data())
def test_any_chunks_dtypes_and_ranks(data: st.DataObject) -> None:
    def chunks(length: int) -> tuple[int, ...]:
        edges = data.draw(st.sets(st.integers(1, length - 1), min_size=1, max_size=3))
        return tuple(hi - lo for lo, hi in pairwise([0, *sorted(edges), length]))

    m, k, n = (data.draw(st.sampled_from([2, 5, 13])) for _ in range(3))
    dtype = data.draw(st.sampled_from(["bool", "int8", "uint64", "float16", "complex64"]))
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 5, shape).astype(dtype) for shape in ((m, k), (k, n)))
    x = da.from_array(a, chunks=(chunks(m), chunks(k)))
    y = da.from_array(b, chunks=(chunks(k), chunks(n)))
    strategy = data.draw(st.sampled_from(NAMED))
    left, right = data.draw(st.sampled_from([(0, 0), (1, 0), (0, 1), (1, 1)]))
    if strategy == "inner":  # vectors have nothing else to divide
        a, x = (a[0], x[0]) if left else (a, x)
        b, y = (b[:, 0], y[:, 0]) if right else (b, y)
    z, plain = dgpu.matmul(x, y, strategy=strategy), da.matmul(x, y)
    assert (z.chunks, z.dtype) == (plain.chunks, plain.dtype)
    with dgpu.enable(local_ranks=data.draw(st.integers(1, 7)), on_error="raise"):
        value = z.compute(scheduler="sync")
    expected = np.matmul(a.astype(z.dtype), b.astype(z.dtype))
    np.testing.assert_array_equal(value, expected)
    assert value.dtype == z.dtype
    np.testing.assert_array_equal(z.compute(scheduler="sync"), plain.compute(scheduler="sync"))


def test_names_depend_on_the_options() -> None:
    names = {dgpu.matmul(X, Y, strategy=strategy).name for strategy in STRATEGIES}
    assert len(names) == len(STRATEGIES)
    assert dgpu.matmul(X, Y, strategy="row").name in names
    whole = dask.compute(*(dgpu.matmul(X, Y, strategy=each) for each in STRATEGIES))
    for value in whole:
        close(value, A @ B)


@pytest.mark.parametrize(
    ("a", "b", "strategy", "message"),
    [
        (X[:2], Y, "row", "expected at least 2 block rows of a for strategy 'row', got 1"),
        (X[0], Y, "summa", "expected at least 2 block rows of a for strategy 'summa', got 1"),
        (X, Y[:, :1], "summa", "expected at least 2 block columns of b for strategy 'summa'"),
        (X, Y[:, 0], "column", "expected at least 2 block columns of b for strategy 'column'"),
        (X[:, :1], Y[:1], "inner", "expected at least 2 elements along the contraction"),
        (X, X, "row", r"expected a and b of equal inner lengths, got shapes \(11, 13\) and"),
        (da.ones((2, 3, 4)), Y, "row", "expected a with 1 or 2 axes because of options, got 3"),
        (X, da.ones(()), "row", "expected b with 1 or 2 axes because of options, got 0"),
        (X[X[:, 0] > 0], Y, "row", "expected a with known chunk sizes"),
    ],
)
def test_what_is_impossible(a: Any, b: Any, strategy: Strategy, message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        dgpu.matmul(a, b, strategy=strategy)
    assert "\n" not in str(raised.value)


def test_a_result_of_many_chunks_needs_no_warning() -> None:
    a, b = np.arange(20.0)[:, None], np.arange(1.0, 25)[None, :]
    x, y = da.from_array(a, chunks=1), da.from_array(b, chunks=1)
    z = dgpu.matmul(x, y, strategy="row")
    close(z.compute(scheduler="sync"), a @ b)
    with dgpu.enable(local_ranks=3, on_error="raise"):
        close(z.compute(scheduler="sync"), a @ b)
