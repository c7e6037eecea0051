"""Inner products and norms against exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_dgpu as dgpu

DTYPES = ("float16", "float32", "float64", "complex64", "complex128")


def exactly(x: Any, y: Any) -> tuple[Fraction, Fraction, Fraction]:
    """Real and imaginary part of an inner product, and what its error is measured by."""
    real = imaginary = size = Fraction(0)
    for a, b in zip(x.astype(complex).tolist(), y.astype(complex).tolist(), strict=True):
        ar, ai, br, bi = map(Fraction, (a.real, a.imag, b.real, b.imag))
        real += ar * br - ai * bi
        imaginary += ar * bi + ai * br
        size += (abs(ar) + abs(ai)) * (abs(br) + abs(bi))
    return real, imaginary, size


@st.composite
def vectors(draw: st.DrawFn) -> tuple[Any, Any]:
    """Two vectors, whose products nearly cancel if so drawn."""
    n = draw(st.integers(0, 30))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    x, y = (rng.standard_normal(n) * 10.0 ** rng.integers(-3, 4, n) for _ in range(2))
    if draw(st.booleans()):
        x, y = np.concatenate([x, -x]), np.concatenate([y, y])
        y[-1:] *= 1.001
    dtypes = draw(st.tuples(st.sampled_from(DTYPES), st.sampled_from(DTYPES)))
    made = []
    for vector, dtype in zip((x, y), dtypes, strict=True):
        parts = vector + 1j * vector[::-1] if dtype.startswith("c") else vector
        made.append(parts.astype(dtype))
    return made[0], made[1]


def chunked(data: st.DataObject, x: Any) -> da.Array:
    """Cut a vector into up to four chunks."""
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(x) - 1)), max_size=3)))
    sizes = np.diff([0, *(cut for cut in cuts if cut < len(x)), len(x)])
    return da.from_array(x, chunks=(tuple(sizes.tolist()),))


@given(st.data(), vectors())
def test_dot(data: st.DataObject, pair: tuple[Any, Any]) -> None:
    x, y = pair
    real, imaginary, size = exactly(x, y)
    method = data.draw(st.sampled_from(["compensated", "reproducible"]))
    z = dgpu.dot(chunked(data, x), chunked(data, y), method=method)
    with np.errstate(over="ignore"):  # of half precision
        made = z.compute(scheduler="sync")
    assert z.dtype == made.dtype == np.result_type(x, y)
    wide = np.float64 if made.dtype.kind == "f" else np.complex128
    wanted = complex(float(real), float(imaginary))
    with np.errstate(over="ignore"):
        expected = np.asarray(wanted.real if wide is np.float64 else wanted, wide)
        expected = expected.astype(made.dtype) + 0
    if method == "reproducible" or not np.isfinite(expected):
        assert made.tobytes() == expected.tobytes()
        return
    eps = float(np.finfo(made.dtype).eps)
    tiny = np.finfo(np.float64).eps
    tiniest = float(np.finfo(made.dtype).smallest_subnormal)
    bound = 2 * eps * abs(wanted) + len(x) * 4 * tiny**2 * float(size) + tiniest
    assert abs(complex(made) - wanted) <= bound


@given(st.data(), vectors())
def test_norm(data: st.DataObject, pair: tuple[Any, Any]) -> None:
    x, _ = pair
    square = sum(
        (Fraction(v.real) ** 2 + Fraction(v.imag) ** 2 for v in x.astype(complex).tolist()),
        Fraction(0),
    )
    method = data.draw(st.sampled_from(["compensated", "reproducible"]))
    with np.errstate(over="ignore"):
        made = dgpu.norm(chunked(data, x), method=method).compute(scheduler="sync")
    real = x.real.dtype
    assert made.dtype == real
    wanted = math.sqrt(square)
    if wanted > np.finfo(real).max:
        assert np.isinf(made)
    else:
        assert abs(float(made) - wanted) <= 2 * float(np.finfo(real).eps) * wanted + float(
            np.finfo(real).smallest_subnormal
        )


def test_norm_along_axes() -> None:
    x = np.random.default_rng(1).standard_normal((5, 7, 3))
    y = da.from_array(x, chunks=(2, 3, 3))
    for axis in (None, 0, -1, (0, 2)):
        for keepdims in (False, True):
            wanted = np.sqrt((x**2).sum(axis=axis, keepdims=keepdims))
            for method in ("compensated", "reproducible", "dask"):
                made = dgpu.norm(y, axis, keepdims, method=method)
                assert made.shape == wanted.shape
                np.testing.assert_allclose(made.compute(scheduler="sync"), wanted, rtol=1e-15)


def test_what_is_not_finite() -> None:
    huge = np.array([1e200, 1.0]), np.array([1e200, 1.0])
    for x, y in (
        huge,
        (np.array([np.inf, 1]), np.array([1.0, 2])),
        (np.array([np.nan]), np.array([1.0])),
    ):
        with np.errstate(over="ignore"):
            wanted = np.dot(x, y)
        for method in ("compensated", "reproducible"):
            made = dgpu.dot(da.from_array(x), da.from_array(y), method=method)
            np.testing.assert_equal(made.compute(scheduler="sync"), wanted)
    x = np.array([1.5e308, 2.0**-1000]), np.array([1.0, 2.0**900])
    made = dgpu.dot(*map(da.from_array, x), method="reproducible").compute(scheduler="sync")
    assert made == 1.5e308


def test_integers_are_dasks() -> None:
    x = da.from_array(np.arange(9, dtype="int32"), chunks=4)
    assert dgpu.dot(x, x).compute(scheduler="sync") == 204
    assert dgpu.dot(x, x.astype("float32")).dtype == np.result_type("int32", "float32")
    assert dgpu.norm(x).compute(scheduler="sync") == pytest.approx(math.sqrt(204), rel=1e-15)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "uint64"])
@pytest.mark.parametrize("chunks", [20, 3])
def test_small_integers_overflow_as_in_numpy(dtype: str, chunks: int) -> None:
    """Dask sums partial products in a wider dtype, so that its answer depends on chunks."""
    a = np.full(20, 100).astype(dtype)
    x = da.from_array(a, chunks=chunks)
    for method in ("compensated", "reproducible"):
        made = dgpu.dot(x, x, method=method)
        value = made.compute(scheduler="sync")
        assert made.dtype == value.dtype == np.dot(a, a).dtype
        assert value == np.dot(a, a)


def test_blocks_of_unknown_sizes_must_match() -> None:
    """A block of one number would else be multiplied with each of another."""
    a = np.arange(10.0)
    x = da.from_array(a, chunks=5)
    left, right = ((a < 1) | (a >= 5), (a < 5) | (a == 9))
    chosen = [x[da.from_array(mask, chunks=5)] for mask in (left, right)]
    for method in ("compensated", "reproducible"):
        assert dgpu.dot(chosen[0], chosen[0], method=method).compute(scheduler="sync") == 255
        with pytest.raises(ValueError, match="expected blocks of equal shape, got"):
            dgpu.dot(*chosen, method=method).compute(scheduler="sync")


def test_one_pass_of_few_tasks() -> None:
    x = da.ones(800, chunks=100)
    (made,) = dask.optimize(dgpu.dot(x, x))
    assert len(dict(made.__dask_graph__())) <= 8 + 2


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (
            lambda x: dgpu.dot(x, x[:-1]),
            ValueError,
            "x and y of the same length, got 6 and 5",
        ),
        (lambda x: dgpu.dot(x[None], x), ValueError, "expected x with 1 axis, got 2"),
        (lambda x: dgpu.dot(x, x[0]), ValueError, "expected y with 1 axis, got 0"),
        (
            lambda x: dgpu.dot(x, x, method="fast"),
            ValueError,
            "unknown method 'fast', ",
        ),
        (lambda x: dgpu.dot(x, x.astype(object)), TypeError, "expected y to be of .*, got object"),
        (lambda x: dgpu.dot(x, [1, None]), TypeError, "expected y to be of .*, got object"),
        (lambda x: dgpu.norm(x, 1), ValueError, "axis"),
        (lambda x: dgpu.norm(x, method=None), TypeError, "expected method to be one of"),
    ],
)
def test_what_is_refused(call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call(da.ones(6, chunks=2))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_of_a_gpu(dtype: str) -> None:
    rng = np.random.default_rng(5)
    x, y = ((rng.standard_normal(4000) + 1j * rng.standard_normal(4000)) for _ in range(2))
    if not dtype.startswith("c"):
        x, y = x.real, y.real
    pair = [da.from_array(each.astype(dtype), chunks=999) for each in (x, y)]
    there = [each.to_backend("cupy") for each in pair]
    for method in ("compensated", "reproducible"):
        here = dgpu.dot(*pair, method=method).compute(scheduler="sync")
        made = dgpu.dot(*there, method=method).compute(scheduler="sync")
        assert type(made).__module__.startswith("cupy")
        if method == "reproducible":
            assert made.get().tobytes() == here.tobytes()
        else:
            eps = np.finfo(made.dtype).eps
            np.testing.assert_allclose(made.get(), here, rtol=8 * eps)
