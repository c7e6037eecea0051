"""Sums, means, variances, products, norms and extremes of bfloat16 in one process."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_dtypes import bfloat16, finfo

import dask_dgpu as dgpu
from tests.support.exact import FAMILIES, UNIT, exact, family, to_nearest, units, within_bound
from tests.support.explained import said
from tests.support.profiles import examples

METHODS = ("compensated", "reproducible")
DTYPE = np.dtype(bfloat16)
EPS = float(finfo(DTYPE).eps)
TINIEST = float(finfo(DTYPE).smallest_subnormal)
SHAPE = (7, 11, 5)
CHUNKS = (3, 4, 5)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with dask.config.set(scheduler="synchronous"):
        yield


def numbers(shape: tuple[int, ...] = SHAPE) -> Any:
    return np.random.default_rng(3).integers(-4, 5, shape).astype(DTYPE)


def rounded(fraction: Fraction) -> float:
    """Return a number of at most 2**-1074 places, rounded to bfloat16."""
    return float(to_nearest(round(fraction * (1 << UNIT)), "bfloat16"))


def nearest(values: Any) -> Any:
    """Return doubles, each rounded to bfloat16 once."""
    found = np.array(values, float)
    for index, each in np.ndenumerate(found):
        found[index] = rounded(Fraction(each)) if math.isfinite(each) else each
    return found


def check(result: da.Array, wanted: Any) -> None:
    """Compare with doubles that are rounded once."""
    value = result.compute()
    assert value.dtype == result.dtype == result._meta.dtype == DTYPE
    assert value.shape == result.shape == np.shape(wanted)
    assert type(value) is (np.ndarray if value.ndim else bfloat16)
    np.testing.assert_array_equal(value.astype(float), nearest(wanted))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["sum", "mean"])
def test_any_axes(name: str, method: Any) -> None:
    a = numbers()
    x = da.from_array(a, chunks=CHUNKS)
    for axis in (None, 0, -1, (0, 2), (), (1,), (-1, 0, 1)):
        for keepdims in (False, True):
            wanted = getattr(np, name)(a.astype(float), axis=axis, keepdims=keepdims)
            check(getattr(dgpu, name)(x, axis, keepdims, method=method), wanted)
    for view in (a[::-1, :, ::2], a.T, np.broadcast_to(a[0, 0], SHAPE)):
        wanted = getattr(np, name)(view.astype(float), axis=(0, 1))
        check(getattr(dgpu, name)(da.from_array(view, chunks=3), (0, 1), method=method), wanted)


@pytest.mark.parametrize("function", [np.sum, np.mean, np.var, np.std, np.max, np.min])
def test_dtype_is_that_of_numpy(function: Any) -> None:
    a = numbers()
    for axis in (None, 1):
        result = getattr(dgpu, function.__name__)(da.from_array(a, chunks=CHUNKS), axis)
        assert result.dtype == function(a, axis=axis).dtype == DTYPE


@examples(300)
@given(data=st.data(), name=st.sampled_from(FAMILIES))
def test_exact_for_any_chunks_and_order(data: st.DataObject, name: str) -> None:
    n = data.draw(st.integers(1, 300))
    values = family(name, n, "bfloat16")
    if data.draw(st.booleans()):
        values = np.random.default_rng(data.draw(st.integers(0, 99))).permutation(values)
    x = da.from_array(values, chunks=data.draw(st.integers(max(1, n // 9), n)))
    value = dgpu.sum(x, method="reproducible").compute()
    assert value.tobytes() == to_nearest(exact(values), "bfloat16").tobytes()
    assert within_bound(dgpu.sum(x).compute(), values, EPS)


@pytest.mark.parametrize("n", [2, 7, 300, 10_007])
def test_more_numbers_than_it_can_count(n: int) -> None:
    """Added in bfloat16, ones stay at 256."""
    x = da.ones((n, 2), chunks=(max(1, n // 3), 2), dtype=DTYPE)
    for method in METHODS:
        check(dgpu.sum(x, 0, method=method), [n, n])
        check(dgpu.mean(x, method=method), 1.0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([np.inf, 1], np.inf),
        ([-np.inf, np.inf], np.nan),
        ([np.nan, np.inf], np.nan),
        ([TINIEST, TINIEST], 4 * TINIEST),
        ([3e38], np.inf),
        ([], 0.0),
    ],
)
def test_what_is_not_finite_subnormal_or_empty(
    method: Any, values: list[float], wanted: float
) -> None:
    x = da.from_array(np.array([*values, *values], DTYPE), chunks=1 if values else -1)
    check(dgpu.sum(x, method=method), wanted)
    if len(values) > 1:
        check(dgpu.mean(x, method=method), wanted / 4)


@pytest.mark.parametrize("method", METHODS)
def test_means(method: Any) -> None:
    huge = da.full(4, float(finfo(DTYPE).max), chunks=1, dtype=DTYPE)
    check(dgpu.mean(huge, method=method), float(finfo(DTYPE).max))
    assert np.isnan(dgpu.mean(da.zeros(0, dtype=DTYPE), method=method).compute())
    x = da.from_array(np.array([1, 2, 4], DTYPE), chunks=1)
    check(dgpu.mean(x, method=method), 7 / 3)
    check(dgpu.sum(x[0], method=method), 1.0)
    check(dgpu.sum(x[x > 1], method=method), 6.0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("source", ["bool", "int8", "int64", "float16", "float32", "float64"])
def test_it_is_the_dtype_of_the_result(method: Any, source: str) -> None:
    a = (numbers() > 0).astype(source) if source == "bool" else numbers().astype(source)
    x = da.from_array(a, chunks=CHUNKS)
    for dtype in (DTYPE, bfloat16, "bfloat16"):
        check(dgpu.sum(x, 0, dtype=dtype, method=method), a.astype(float).sum(0))
        check(dgpu.mean(x, 0, dtype=dtype, method=method), a.astype(float).mean(0))


def test_numbers_are_converted_first_and_rounded_once() -> None:
    x = da.from_array(np.array([1 + 2.0**-8 + 2.0**-40] * 4), chunks=2)
    check(dgpu.sum(x, dtype=DTYPE), 4 + 2.0**-5)


@pytest.mark.parametrize("wanted", ["float16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("method", METHODS)
def test_other_dtypes_of_the_result(method: Any, wanted: str) -> None:
    a = numbers()
    result = dgpu.sum(da.from_array(a, chunks=CHUNKS), 1, dtype=wanted, method=method)
    assert result.dtype == wanted
    np.testing.assert_array_equal(result.compute(), a.astype(float).sum(1).astype(wanted))


def test_integers_are_dasks() -> None:
    x = da.from_array(numbers(), chunks=CHUNKS)
    assert dgpu.sum(x, dtype=int).compute() == numbers().astype(int).sum()


@pytest.mark.parametrize("values", [[3, 1, 2], [np.nan, 1, 2], [1, 2, np.nan], [-np.inf, 0, 7]])
@pytest.mark.parametrize("name", ["max", "min"])
def test_largest_and_smallest(name: str, values: list[float]) -> None:
    x = da.from_array(np.array(values, DTYPE), chunks=2)
    check(getattr(dgpu, name)(x), getattr(np, name)(values))
    a = numbers()
    for axis in (0, (0, -1)):
        wanted = getattr(np, name)(a.astype(float), axis, keepdims=True)
        check(getattr(dgpu, name)(da.from_array(a, chunks=CHUNKS), axis, True), wanted)


@pytest.mark.parametrize("method", [*METHODS, "dask"])
def test_variance_and_deviation(method: Any) -> None:
    a = (np.random.default_rng(8).standard_normal((50, 7)) * 30 + 100).astype(DTYPE)
    x = da.from_array(a, chunks=(13, 4))
    for axis in (None, 0, 1, (0, 1)):
        for ddof in (0, 1):
            for name in ("var", "std"):
                value = getattr(dgpu, name)(x, axis, axis == 0, ddof=ddof, method=method).compute()
                wanted = getattr(np, name)(a.astype(float), axis, ddof=ddof, keepdims=axis == 0)
                assert (value.dtype, value.shape) == (DTYPE, wanted.shape)
                np.testing.assert_allclose(value.astype(float), wanted, rtol=EPS)
    assert np.isnan(dgpu.var(x[:1, 0], ddof=1).compute())


@examples(200)
@given(data=st.data(), n=st.integers(0, 40))
def test_inner_products_are_rounded_once(data: st.DataObject, n: int) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    a, b = ((rng.standard_normal(n) * 2.0 ** rng.integers(-40, 40, n)) for _ in range(2))
    x, y = a.astype(DTYPE), b.astype(DTYPE)
    if data.draw(st.booleans()):
        x, y = np.append(x, -x), np.append(y, y)
        y[-1:] *= DTYPE.type(1.5)
    products = [Fraction(float(u)) * Fraction(float(v)) for u, v in zip(x, y, strict=True)]
    wanted = float(sum(products))
    chunks = data.draw(st.integers(1, max(1, len(x))))
    left, right = (da.from_array(each, chunks=chunks) for each in (x, y))
    made = dgpu.dot(left, right, method="reproducible")
    assert made.dtype == DTYPE
    assert float(made.compute()) == rounded(Fraction(wanted))
    near = float(dgpu.dot(left, right).compute())
    lost = len(x) * float(np.finfo(float).eps) ** 2 * float(sum(map(abs, products)))
    assert abs(near - wanted) <= EPS * abs(wanted) + lost + TINIEST
    squares = sum((Fraction(float(u)) ** 2 for u in x), Fraction(0))
    for method in METHODS:
        length = dgpu.norm(left, method=method)
        assert length.dtype == np.linalg.norm(x).dtype == np.float64
        assert length.compute() == pytest.approx(math.sqrt(squares), rel=1e-15)


@pytest.mark.parametrize("other", ["bool", "int8", "float32", "float64", "complex64"])
def test_inner_products_with_other_dtypes(other: str) -> None:
    x, y = numbers((40,)), numbers((80,))[40:].astype(other)
    for method in METHODS:
        made = dgpu.dot(da.from_array(x, chunks=7), da.from_array(y, chunks=9), method=method)
        assert made.dtype == np.result_type(x, y)
        wanted = np.dot(x.astype(float), y.astype(np.result_type(y, float)))
        if made.dtype == DTYPE:
            check(made, wanted)
        else:
            assert made.compute() == wanted.astype(made.dtype)


@pytest.mark.parametrize("other", ["int64", "float16"])
def test_no_dtype_holds_both(other: str) -> None:
    x = da.ones(4, chunks=2, dtype=DTYPE)
    with pytest.raises(TypeError, match=f"with a common one, got bfloat16 and {other}"):
        dgpu.dot(x, x.astype(other))


def test_setting() -> None:
    x = da.ones((4, 300), chunks=(2, 50), dtype=DTYPE)
    assert x.sum().name.startswith("sum-")
    with dgpu.enable(sum_method="reproducible", on_error="raise"):
        for result, wanted in ((x.sum(), 1200), (da.sum(x, 0), np.full(300, 4)), (x.mean(), 1)):
            assert result.name.startswith("reproducible_")
            check(result, wanted)
        check(np.sum(x.astype("float32"), dtype="bfloat16"), 1200)
        assert x.sum(dtype=int).name.startswith("sum-")


@pytest.mark.parametrize("method", METHODS)
def test_within_a_region(method: Any) -> None:
    a = np.random.default_rng(5).random((16, 12))
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        y = (abs(da.fft.fft2(da.from_array(a, chunks=(4, 12)))) ** 2).astype(DTYPE)
        wanted = (abs(np.fft.fft2(a)) ** 2).astype(DTYPE).astype(float)
        for axis in (None, 0):
            z = dgpu.sum(y, axis, method=method)
            (gang,) = dgpu.explain(z).to_dict()["regions"]
            assert len(gang["steps"]) > 2
            np.testing.assert_allclose(z.compute().astype(float), wanted.sum(axis), rtol=2 * EPS)


def test_within_a_region_blocks_travel() -> None:
    """What a rank has made, another reads: bytes, in messages of their own."""
    a = np.random.default_rng(5).random((64, 64))
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        y = da.fft.fft2(da.from_array(a, chunks=(16, 64))).real.astype(DTYPE)
        z = dgpu.sum(y + y[::-1, ::-1], 0, method="reproducible")
        (gang,) = dgpu.explain(z).to_dict()["regions"]
        assert any(step.startswith("getitem") for step in gang["steps"])
        value = z.compute()
    made = np.fft.fft2(a).real.astype(DTYPE)
    wanted = (made + made[::-1, ::-1]).astype(float).sum(0)
    np.testing.assert_allclose(value.astype(float), wanted, rtol=4 * EPS, atol=16)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["sum", "mean"])
def test_wide_sums_are_a_gang(name: str, method: Any) -> None:
    a = np.tile(family("condition 1e4", 9 * 1000, "bfloat16").reshape(9, 1000), 200)
    x = da.from_array(a, chunks=(2, 100_000)).persist()
    wanted = nearest(getattr(a[:, :1000].astype(float), name)(0))
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        y = getattr(dgpu, name)(x, 0, method=method)
        assert len(dgpu.explain(y).regions) == 1
        found = y.compute()
    assert found.dtype == DTYPE
    if (name, method) == ("sum", "reproducible"):
        sums = [to_nearest(exact(a[:, k]), "bfloat16") for k in range(1000)]
        np.testing.assert_array_equal(found, np.tile(sums, 200))
    np.testing.assert_allclose(
        found.astype(float), np.tile(wanted, 200).astype(float), rtol=EPS, atol=1e-12
    )


def test_other_collectives_are_left_to_dask() -> None:
    x = da.from_array(numbers((6, 8)), chunks=(3, 4))
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        for y, wanted in ((x.rechunk((6, 2)), numbers((6, 8))), (x.T, numbers((6, 8)).T)):
            assert dgpu.explain(y).rewritten == ()
            np.testing.assert_array_equal(y.compute(), wanted)
        product = dgpu.explain(da.matmul(x, x.T))
        assert product.rewritten == ()
        assert "dtype bfloat16 has no kernel" in said(product)
        with pytest.raises(TypeError, match="a to be of real or complex numbers, got bfloat16"):
            da.fft.fft(x)


@pytest.mark.slow
def test_a_process_that_has_seen_no_such_array() -> None:
    """The dtype has a name there only once its package is imported."""
    script = """
import sys
import numpy as np
import dask_dgpu
from dask_dgpu.kernels.sums.partial import finished, partial_sum
whole = partial_sum(np.ones(3, "float32"), (0,), "reproducible", "bfloat16")
assert "ml_dtypes" not in sys.modules
print(finished(whole, "sum", "bfloat16", (0,), False).dtype)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("bfloat16\n", "")


def test_units_of_the_oracle() -> None:
    assert units(TINIEST) == 1 << (UNIT - 133)
    assert rounded(Fraction(3, 2) * Fraction(TINIEST)) == 2 * TINIEST
    assert rounded(Fraction(1, 2) * Fraction(TINIEST)) == 0
