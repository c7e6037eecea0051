"""``dgpu.shard_map``: plain Dask, and gangs whose ranks are threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from tests.support.profiles import examples

RNG = np.random.default_rng(0)
A = RNG.standard_normal((13, 6))


@pytest.fixture(autouse=True, params=[None, 1, 3, 5], ids="ranks={}".format)
def enabled(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param is None:
        yield None
    else:
        with dgpu.enable(local_ranks=request.param, on_error="raise") as state:
            yield state


def same(comm: dgpu.ShardComm, x: Any) -> Any:
    return x


def test_shards_are_those_of_bounds() -> None:
    def places(comm: dgpu.ShardComm, x: Any) -> Any:
        lo, hi = comm.bounds(13)
        np.testing.assert_array_equal(x, A[lo:hi])
        return np.arange(lo, hi)

    y = dgpu.shard_map(places, out=((13,), "i8"))(da.from_array(A, chunks=(4, 5)))
    assert y.dtype == "i8"
    np.testing.assert_array_equal(y.compute(), np.arange(13))


@st.composite
def arrays(draw: st.DrawFn) -> tuple[da.Array, Any, int | None, int | None]:
    """An array in uneven chunks, the axis of its shards, and that of the result's."""
    shape = tuple(draw(st.lists(st.integers(0, 7), min_size=1, max_size=3)))
    dtype = draw(st.sampled_from(["f4", "f8", "c16", "i4", "?"]))
    block = (RNG.standard_normal(shape) * 9).astype(dtype)
    chunks = []
    for length in shape:
        edges = sorted(draw(st.lists(st.integers(0, length), max_size=3)))
        chunks.append(tuple(np.diff([0, *edges, length]).tolist()))
    axis = draw(st.sampled_from([None, *range(len(shape))]))
    return da.from_array(block, chunks=tuple(chunks)), block, axis, axis


@examples(40)
@given(problem=arrays(), ranks=st.sampled_from([1, 2, 3, 7]))
def test_identity(problem: Any, ranks: int) -> None:
    x, block, axis, out_axis = problem
    with dgpu.enable(local_ranks=ranks, on_error="raise"):
        y = dgpu.shard_map(same, in_=axis, out=(x.shape, x.dtype, out_axis))(x)
        assert len(dgpu.explain(y).rewritten) == 1
        found = y.compute()
    assert found.dtype == block.dtype
    np.testing.assert_array_equal(found, block)


def test_another_axis_and_a_whole_array() -> None:
    def product(comm: dgpu.ShardComm, x: Any, w: Any) -> Any:
        assert x.shape[0] == 13
        assert w.shape == (6, 2)
        lo, hi = comm.bounds(6)
        return comm.all_reduce(x @ w[lo:hi])

    w = RNG.standard_normal((6, 2))
    step = dgpu.shard_map(product, in_=(1, None), out=((13, 2), "f8", None))
    y = step(da.from_array(A, chunks=4), da.from_array(w, chunks=1))
    assert y.chunks == ((13,), (2,))
    np.testing.assert_allclose(y.compute(), A @ w, rtol=1e-13)


def test_a_number_without_axes() -> None:
    def total(comm: dgpu.ShardComm, x: Any) -> Any:
        return comm.all_reduce(x.sum())

    y = dgpu.shard_map(total, out=((), "f8", None))(da.from_array(A, chunks=3))
    assert float(y.compute()) == pytest.approx(A.sum(), abs=1e-12)
    assert float((y + 1).compute()) == pytest.approx(A.sum() + 1, abs=1e-12)


def test_results_enter_other_graphs() -> None:
    x = da.from_array(A, chunks=(5, 4))
    y = dgpu.shard_map(same, out=x)(x + 1)
    z = dgpu.shard_map(same, in_=-1, out=((6, 6), "f8", 1))(y.T @ y @ x[:6].T).sum(0)
    np.testing.assert_allclose(z.compute(), ((A + 1).T @ (A + 1) @ A[:6].T).sum(0), rtol=1e-12)


def test_names_depend_on_the_function_and_its_values() -> None:
    def of(factor: float) -> Any:
        def scaled(comm: dgpu.ShardComm, x: Any) -> Any:
            return x * factor

        return dgpu.shard_map(scaled, out=X)(X)

    X = da.from_array(A, chunks=4)
    assert of(2.0).name == of(2.0).name
    assert of(2.0).name != of(3.0).name
    np.testing.assert_array_equal(of(2.0).compute(), A * 2)
    np.testing.assert_array_equal(of(3.0).compute(), A * 3)


def test_arguments_stay_as_they_are() -> None:
    def writes(comm: dgpu.ShardComm, x: Any) -> Any:
        x += 1
        return x

    x = da.from_array(A.copy(), chunks=13).persist(scheduler="sync")
    with pytest.raises(ValueError, match="read-only"):
        dgpu.shard_map(writes, out=x)(x).compute()
    y = dgpu.shard_map(same, out=x)(x).persist()
    found = y.compute()
    found += 1  # a result is no view of an argument
    np.testing.assert_array_equal(x.compute(), A)


def test_errors_of_the_function_are_raised() -> None:
    def fails(comm: dgpu.ShardComm, x: Any) -> Any:
        if comm.rank == comm.size - 1:
            raise KeyError("here")
        comm.barrier()
        return x

    x = da.from_array(A, chunks=4)
    with pytest.raises(KeyError, match="here"):
        dgpu.shard_map(fails, out=x)(x).compute()
    with pytest.raises(ValueError, match=r"expected lambda to return an array of shape \(\d+, 6"):
        dgpu.shard_map(lambda comm, x: x[:, :2], out=x)(x).compute()
    with pytest.raises(TypeError, match="expected lambda to return int64 on rank"):
        dgpu.shard_map(lambda comm, x: x, out=(A.shape, "i8"))(x).compute()


X = da.ones((4, 4), chunks=2)
UNKNOWN = X[X[:, 0] > 0]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: dgpu.shard_map(3, out=X), TypeError, "expected f to be a function, got 3"),
        (lambda: dgpu.shard_map(same, out=3), TypeError, "expected out to be an array, .*, got 3"),
        (lambda: dgpu.shard_map(same, out=((3,),)), ValueError, "expected out to be an array, "),
        (lambda: dgpu.shard_map(same, out=((-3,), "f8")), ValueError, "each length of out"),
        (lambda: dgpu.shard_map(same, out=((3,), "O")), TypeError, "numbers or bools, got object"),
        (lambda: dgpu.shard_map(same, out=((3,), "f8", 1)), ValueError, "one of 1 axes, got 1"),
        (lambda: dgpu.shard_map(same, out=X, in_=1.5), TypeError, "axis of in_ to be an integer"),
        (lambda: dgpu.shard_map(same, out=X, in_=2)(X), ValueError, "one of 2 axes, got 2"),
        (lambda: dgpu.shard_map(same, out=X)(), ValueError, "at least 1 array for same, got 0"),
        (lambda: dgpu.shard_map(same, out=X, in_=(0, 1))(X), ValueError, "expected 2 arrays, .* 1"),
        (lambda: dgpu.shard_map(same, out=X)(UNKNOWN), ValueError, "array 0 with known chunk"),
        (lambda: dgpu.shard_map(same, out=X)(X.sum()), ValueError, "array 0 with at least 1 axis"),
    ],
)
def test_bad_input(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
