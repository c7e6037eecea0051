"""Products without zeros in messages as users call them."""

from __future__ import annotations

import warnings
from typing import Any

import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from tests.support.explained import said
from tests.support.profiles import examples

RNG = np.random.default_rng(0)
A, B = (
    np.where(RNG.random(shape) < 0.2, RNG.standard_normal(shape), 0).astype("float32")
    for shape in ((60, 80), (80, 50))
)
X, Y = da.from_array(A, chunks=(20, 30)), da.from_array(B, chunks=(40, 20))


@pytest.mark.parametrize("product_first", [True, False])
def test_zeros_of_a_value_that_a_stencil_may_overwrite(
    product_first: bool, gangs: list[str], square: tuple[Any, da.Array]
) -> None:
    values, x = square
    doubled = x * 2
    product = dgpu.matmul(doubled, doubled, strategy="row", sparse_threshold=0.5)
    smooth = doubled
    for _ in range(4):
        smooth = smooth.map_overlap(neighbours, depth=1, boundary="periodic", meta=x._meta)
    both = (product, smooth) if product_first else (smooth, product)
    with dgpu.enable(local_ranks=3, on_error="raise", when="always"):
        found = dgpu.matmul(*both, sparse_threshold=0.5).compute(scheduler="sync")
    wanted = 2 * values
    for _ in range(4):
        wanted = neighbours(np.pad(wanted, 1, mode="wrap"))[1:-1, 1:-1]
    pair = 4 * values @ values, wanted
    first, second = pair if product_first else pair[::-1]
    np.testing.assert_array_equal(found, first @ second)
    assert len(gangs) == 1


@pytest.fixture
def square() -> tuple[Any, da.Array]:
    """Small integers, so that all sums are exact."""
    values = np.where(RNG.random((24, 24)) < 0.2, RNG.integers(1, 4, (24, 24)), 0).astype("f8")
    return values, da.from_array(values, chunks=6)


def neighbours(block: Any) -> Any:
    return np.roll(block, 1, 0) + np.roll(block, -1, 0)


@examples(25)
@given(st.data())
def test_any_chunks_dtypes_and_options(data: st.DataObject) -> None:
    m, k, n = (data.draw(st.sampled_from([2, 5, 13])) for _ in range(3))
    dtypes = st.sampled_from(["bool", "int16", "int64", "float16", "float32", "complex128"])
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    density = data.draw(st.sampled_from([0, 0.1, 0.5, 1]))
    a, b = (
        np.where(rng.random(shape) < density, rng.integers(-3, 4, shape), 0).astype(
            data.draw(dtypes)
        )
        for shape in ((m, k), (k, n))
    )
    sizes = st.integers(1, 6)
    x = da.from_array(a, chunks=(1, data.draw(sizes)))
    y = da.from_array(b, chunks=(data.draw(sizes), 1))
    strategy = data.draw(st.sampled_from(["auto", "row", "column", "summa", "inner"]))
    threshold = data.draw(st.sampled_from([0.3, 1, "auto"]))
    z = dgpu.matmul(x, y, strategy=strategy, sparse_threshold=threshold)
    with dgpu.enable(local_ranks=data.draw(st.integers(1, 7)), on_error="raise"):
        value = z.compute(scheduler="sync")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", da.PerformanceWarning)
        assert value.dtype == z.dtype == da.matmul(x, y).dtype
    # small integers: exact in every dtype; Dask counts in int64 if it sums products of bools
    np.testing.assert_array_equal(value, a.astype(z.dtype) @ b.astype(z.dtype))


def test_vectors_and_nan() -> None:
    a, b = A.copy(), B.copy()
    a[:, 30:60] = 0
    b[45, 7], b[50, 9] = np.inf, np.nan
    x, y = da.from_array(a, chunks=(20, 30)), da.from_array(b, chunks=(30, 20))
    with dgpu.enable(local_ranks=3, on_error="raise"), np.errstate(all="ignore"):
        for left, right, exact in ((x, y, a @ b), (x[0], y, a[0] @ b), (x, y[:, 7], a @ b[:, 7])):
            value = dgpu.matmul(left, right, sparse_threshold=1).compute(scheduler="sync")
            np.testing.assert_allclose(value, exact, rtol=1e-4, atol=1e-5)


def test_explain_and_the_setting() -> None:
    def explained(**options: Any) -> tuple[str, dict[str, Any]]:
        found = dgpu.explain(dgpu.matmul(X, Y, strategy="summa", **options))
        (piece,) = found.to_dict()["rewritten"]
        return said(found), piece

    with dgpu.enable(local_ranks=4, on_error="raise", matmul_wire_dtype="float16"):
        text, piece = explained(sparse_threshold=0.5)
        automatic, other = explained(sparse_threshold="auto")
    assert "no zeros in messages of parts below density 0.5" in text
    assert (piece["sparse_threshold"], piece["wire_dtype"]) == (0.5, "exact")
    assert "leaving them out saves no time" in automatic  # threads read each other's memory
    assert other["sparse_threshold"] == "auto"


def test_without_a_gang(gangs: list[str]) -> None:
    z = dgpu.matmul(X, Y, sparse_threshold=0.5)
    np.testing.assert_array_equal(z.compute(), (X @ Y).compute())
    assert gangs == []


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_another_form(dtype: Any) -> None:
    message = "expected wire_dtype None or 'exact' with sparse_threshold, got "
    with pytest.raises(ValueError, match=f"{message}'{dtype}'"):
        dgpu.matmul(X, Y, wire_dtype=dtype, sparse_threshold=0.5)
    assert dgpu.matmul(X, Y, wire_dtype="exact", sparse_threshold=0.5).shape == (60, 50)
