"""Products in half precision as users call them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_dtypes import finfo

import dask_dgpu as dgpu
from tests.support.explained import said
from tests.support.profiles import examples

FORMATS = ["bfloat16", "float16"]
A = np.random.default_rng(0).standard_normal((60, 80)).astype("float32")
B = np.random.default_rng(1).standard_normal((80, 50)).astype("float32")
X, Y = da.from_array(A, chunks=(20, 30)), da.from_array(B, chunks=(40, 20))
EXACT = A.astype(float) @ B.astype(float)


def bound(a: Any, b: Any, dtype: str) -> Any:
    """The error that the docstring states."""
    a, b = np.atleast_2d(a.astype(float)), b.astype(float).reshape(len(b), -1)
    norms = np.outer(np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=0))
    return 2 * float(finfo(dtype).eps) * np.sqrt(a.shape[1]) * norms


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("ranks", range(1, 8))
def test_the_error_is_bounded(dtype: Any, ranks: int, gangs: list[str]) -> None:
    z = dgpu.matmul(X, Y, wire_dtype=dtype)
    with dgpu.enable(local_ranks=ranks, on_error="raise"):
        value = z.compute(scheduler="sync")
    error = abs(value - EXACT)
    assert value.dtype == "float32"
    assert (error <= bound(A, B, dtype)).all()
    rounded = 10 * np.finfo("float32").eps * np.abs(A) @ np.abs(B)
    assert (error > rounded).any() == (ranks > 1)  # messages were rounded, and only they
    assert len(gangs) == 1


@examples(25)
@given(st.data())
def test_any_chunks_dtypes_and_options(data: st.DataObject) -> None:
    def chunks(length: int) -> tuple[int, ...]:
        edges = data.draw(st.sets(st.integers(1, length - 1), min_size=1, max_size=3))
        return tuple(hi - lo for lo, hi in pairwise([0, *sorted(edges), length]))

    m, k, n = (data.draw(st.sampled_from([2, 5, 13])) for _ in range(3))
    left, right = (data.draw(st.sampled_from(["float32", "float64"])) for _ in range(2))
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((m, k)).astype(left), rng.standard_normal((k, n)).astype(right)
    x = da.from_array(a, chunks=(chunks(m), chunks(k)))
    y = da.from_array(b, chunks=(chunks(k), chunks(n)))
    strategy = data.draw(st.sampled_from(["auto", "row", "column", "summa", "inner"]))
    dtype = data.draw(st.sampled_from(sorted(FORMATS)))
    z = dgpu.matmul(x, y, strategy=strategy, wire_dtype=dtype)
    with dgpu.enable(local_ranks=data.draw(st.integers(1, 7)), on_error="raise"):
        value = z.compute(scheduler="sync")
    assert value.dtype == z.dtype == da.matmul(x, y).dtype
    assert (abs(value - a.astype(float) @ b.astype(float)) <= bound(a, b, dtype)).all()


def test_vectors() -> None:
    with dgpu.enable(local_ranks=3, on_error="raise"):
        for x, y in ((X[0], Y), (X, Y[:, 1]), (X[0], Y[:, 1])):
            a, b = dask.compute(x, y)
            value = dgpu.matmul(x, y, wire_dtype="float16").compute()
            assert value.shape == (a @ b).shape
            error = np.reshape(abs(value - a.astype(float) @ b), bound(a, b, "float16").shape)
            assert (error <= bound(a, b, "float16")).all()


def test_explain_states_the_bound() -> None:
    with dgpu.enable(local_ranks=4, on_error="raise"):
        explanation = dgpu.explain(dgpu.matmul(X, Y, wire_dtype="float16"))
        (piece,) = explanation.to_dict()["rewritten"]
        (plain,) = dgpu.explain(dgpu.matmul(X, Y, strategy="row")).to_dict()["rewritten"]
    number = 2 * 2**-10 * np.sqrt(80)
    assert f"= {number:.2g} |row| |column| (eps 0.000977, K 80)" in said(explanation)
    assert (piece["wire_dtype"], plain["wire_dtype"]) == ("float16", "exact")
    assert piece["moved_bytes"] < plain["moved_bytes"]


def test_without_a_gang(gangs: list[str]) -> None:
    z = dgpu.matmul(X, Y, wire_dtype="float16")
    np.testing.assert_array_equal(z.compute(), (X @ Y).compute())
    assert gangs == []


def test_the_setting_is_for_products_of_floats() -> None:
    def precisions(z: da.Array) -> list[str]:
        pieces = dgpu.explain(z).to_dict()["rewritten"]
        return [piece["wire_dtype"] for piece in pieces if "inner" in piece]

    with dgpu.enable(local_ranks=3, when="always", on_error="raise", matmul_wire_dtype="bfloat16"):
        assert precisions(dgpu.matmul(X, Y, strategy="row")) == ["bfloat16"]
        assert precisions(dgpu.matmul(X, Y, wire_dtype="exact")) == ["exact"]
        assert precisions(dgpu.matmul(X, Y, wire_dtype="float16")) == ["float16"]
        x, y = X.rechunk((20, 40)), Y
        for z in (x @ y, da.dot(x, y), dgpu.matmul(x, y)):
            assert precisions(z) == ["bfloat16"]
            assert (abs(z.compute() - EXACT) <= bound(A, B, "bfloat16")).all()
        for dtype in ("int64", "float16", "complex64"):
            assert precisions(x.astype(dtype) @ y.astype(dtype)) == ["exact"]
    with dask.config.set({"dgpu.matmul.wire-dtype": "float16"}), dgpu.enable(when="always"):
        assert precisions(X.rechunk((20, 40)) @ Y) == ["float16"]


@pytest.mark.parametrize("dtype", ["int64", "float16", "complex64", "bool"])
def test_other_dtypes_raise(dtype: str) -> None:
    message = f"expected b of float32 or float64 for wire_dtype 'bfloat16', got {dtype}"
    with pytest.raises(TypeError, match=message):
        dgpu.matmul(X, Y.astype(dtype), wire_dtype="bfloat16")
    assert dgpu.matmul(X, Y.astype(dtype), wire_dtype="exact").shape == (60, 50)
