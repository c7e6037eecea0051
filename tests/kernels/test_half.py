"""Rows in half precision: rounded once, whatever their magnitude."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.kernels import zeros
from dask_dgpu.kernels.half import FORMATS, narrow, widen
from tests.support.profiles import examples

Array = Any


def travelled(values: Array, dtype: str, order: str = "C") -> tuple[Array, int]:
    """Return the values after both conversions, and the count."""
    bits, exponents = np.empty(values.shape, np.uint16, order), np.empty(len(values), np.int16)
    out = np.empty(values.shape, values.dtype, order)
    count = narrow(values, bits, exponents, dtype)
    widen(bits, exponents, out, dtype)
    return out, int(count)


def least(dtype: str) -> float:
    """What a number becomes that is too small, relative to the least that the largest can be."""
    number = np.array(FORMATS[dtype].least_bits, np.uint16).view(ml_dtypes.finfo(dtype).dtype)
    return float(number) / 2.0 ** (FORMATS[dtype].top - 1)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("values", ["float32", "float64"])
@pytest.mark.parametrize("order", ["C", "F"])
@examples(20)
@given(seed=st.integers(0, 2**32), shape=st.tuples(st.integers(1, 9), st.integers(1, 9)))
def test_every_element_is_rounded_once(
    dtype: str, values: str, order: str, seed: int, shape: tuple[int, int]
) -> None:
    rng, info = np.random.default_rng(seed), np.finfo(values)
    scale = rng.integers(info.minexp - info.nmant, info.maxexp, (shape[0], 1))
    spread = rng.integers(-rng.integers(1, 80), 1, shape)
    with np.errstate(all="ignore"):
        x = np.ldexp(rng.uniform(0.5, 1, shape), scale + spread) * rng.choice([-1, 1], shape)
        x = np.asarray(x.astype(values), order=order)  # type: ignore[call-overload]
    y, count = travelled(x, dtype, order)
    wide, found = x.astype(np.longdouble), y.astype(np.longdouble)
    largest = abs(wide).max(axis=1, keepdims=True)
    limit = FORMATS[dtype].eps / 2 * (1 + 2.0**-8) * abs(wide)
    underflow = largest * np.longdouble(least(dtype)) + info.smallest_subnormal
    assert np.isfinite(y).all()
    assert np.all(abs(found - wide) <= np.maximum(limit, underflow))
    np.testing.assert_array_equal(np.sign(y), np.sign(x))
    assert count == 0 or np.any(abs(wide) < largest * 2.0**-28)


def test_numbers_in_the_range_are_those_of_the_dtype() -> None:
    x = np.random.default_rng(0).uniform(1, 2, (300, 1000)).astype("float32")
    np.testing.assert_array_equal(travelled(x, "float16")[0], x.astype("float16"))
    np.testing.assert_array_equal(travelled(x, "bfloat16")[0], x.astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("values", ["float32", "float64"])
def test_special_values(dtype: str, values: str) -> None:
    largest = np.finfo(values).max
    tiny = np.finfo(values).smallest_subnormal
    x = np.array(
        [
            [largest, -largest, 0.0, -0.0],
            [np.inf, -np.inf, np.nan, 1.0],
            [tiny, -tiny, 0.0, np.nan],
            [0.0, -0.0, 0.0, 0.0],
            [np.nan, np.inf, np.nan, np.nan],
        ],
        values,
    )
    with np.errstate(all="raise"):
        y, count = travelled(x, dtype)
    np.testing.assert_allclose(y, x, rtol=float(FORMATS[dtype].eps))
    np.testing.assert_array_equal(np.signbit(y[~np.isnan(y)]), np.signbit(x[~np.isnan(x)]))
    assert count == 0


def test_underflow_is_counted() -> None:
    x = np.array([[1e30, 1e-30, 1e20, 0.0], [1.0, 2.0**-29, 2.0**-41, 2.0**-60]], "float32")
    y, count = travelled(x, "float16")
    assert count == 5  # all but the largest
    assert (y == 0).tolist() == [[False, False, False, True], [False] * 4]
    assert y[1].tolist() == [1.0, 2.0**-29, 2.0**-38, 2.0**-38]
    y, count = travelled(x, "bfloat16")
    assert count == 1  # 1e-30 beside 1e30
    np.testing.assert_allclose(y[1], x[1], rtol=2**-8)


def test_parts_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).standard_normal((17, 5))
    whole = travelled(x, "bfloat16")[0]
    monkeypatch.setattr(zeros, "PART", 12)
    np.testing.assert_array_equal(travelled(x, "bfloat16")[0], whole)
