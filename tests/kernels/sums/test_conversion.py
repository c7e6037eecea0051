"""Doubles that become narrower numbers: rounded once, by exact arithmetic."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.kernels.sums.conversion import narrowed, widened
from tests.support.exact import to_nearest, units
from tests.support.profiles import examples

DTYPES = ("bfloat16", "float16", "float32")
finite = st.floats(allow_nan=False, allow_infinity=False)


def check(value: float, dtype: str) -> None:
    with np.errstate(over="ignore"):
        found = narrowed(np.array([value, value]), dtype)
    assert found.dtype.name == dtype
    wanted = to_nearest(units(value), dtype)
    assert float(found[0]) == float(wanted)
    assert found[0] == found[1]


@examples(500)
@given(value=finite, dtype=st.sampled_from(DTYPES))
def test_any_double(value: float, dtype: str) -> None:
    check(value, dtype)


@examples(500)
@given(
    bits=st.integers(0, 0x7F7F),
    sign=st.sampled_from([-1.0, 1.0]),
    places=st.integers(1, 30),
    beside=st.sampled_from([-1, 0, 1]),
    middle=st.booleans(),
)
def test_beside_every_number_and_between_two(
    bits: int, sign: float, places: int, beside: int, middle: bool
) -> None:
    """A tie of bfloat16 and what is next to it in double, in more places than single has."""
    below, above = (float(each) for each in around(bits))
    value = (below + above) / 2 if middle else below
    for _ in range(places * abs(beside)):
        value = float(np.nextafter(value, beside * np.inf))
    check(sign * value, "bfloat16")


def around(bits: int) -> Any:
    """Return a number of bfloat16 and the next, which is 2**128 after the last."""
    words = np.array([bits, bits + 1], np.uint32) << np.uint32(16)
    low, high = words.view(np.float32).astype(float)
    return low, high if np.isfinite(high) else 2.0**128


def test_every_tie() -> None:
    """Between all positive neighbours, also subnormal ones, by NumPy's own rounding to even."""
    bits = np.arange(0x7F80, dtype=np.uint32)
    lows = (bits << np.uint32(16)).view(np.float32).astype(float)
    highs = np.append(lows[1:], 2.0**128)
    middles = (lows + highs) / 2
    for values, wanted in (
        (middles, bits + (bits & 1)),
        (np.nextafter(middles, 0), bits),
        (np.nextafter(middles, np.inf), bits + 1),
        (lows, bits),
    ):
        found = narrowed(values, "bfloat16").view(np.uint16)
        np.testing.assert_array_equal(found, wanted)
        negative = narrowed(-values, "bfloat16").view(np.uint16)
        np.testing.assert_array_equal(negative, wanted | 0x8000)


def test_not_by_way_of_single_precision() -> None:
    value = np.array([1 + 2.0**-8 + 2.0**-40])  # a tie, once it is single
    assert narrowed(value, "bfloat16").astype(float) == 1 + 2.0**-7


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_what_is_not_finite(dtype: str) -> None:
    values = np.array([np.inf, -np.inf, np.nan, -0.0])
    found = narrowed(values, dtype).astype(float)
    np.testing.assert_array_equal(found, values)
    assert np.signbit(found[3])
    payload = np.array([0x7FF8000000000001], np.int64).view(float)
    assert np.isnan(narrowed(payload, dtype).astype(float))


@pytest.mark.parametrize("source", ["bool", "int8", "uint16", "int64", "float16", "float32"])
def test_other_dtypes(source: str) -> None:
    values = np.arange(120).astype(source)
    for dtype in DTYPES:
        np.testing.assert_array_equal(narrowed(values, dtype).astype(float), values.astype(float))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0), (7, 5)])
def test_shapes_and_strides(shape: tuple[int, ...]) -> None:
    values = np.ones(shape) * 1.5
    for step, view in itertools.product((1, -1), (values, values.T)):
        some = view[(slice(None, None, step),) * view.ndim]
        found = narrowed(some, "bfloat16")
        assert found.shape == some.shape
        assert (found.astype(float) == 1.5).all()


@pytest.mark.parametrize("dtype", [*DTYPES, "float64", "int32", "bool"])
def test_widened_is_the_same_value(dtype: str) -> None:
    bits = np.arange(0, 0x7F80, 7, dtype=np.uint32) << np.uint32(16)
    wide = np.append(bits.view(np.float32).astype(float), [0.0, 2.0**-149, -(2.0**-140)])
    with np.errstate(over="ignore", invalid="ignore"):
        values = narrowed(wide, dtype)
    for some in (values, values[::-2]):
        found = widened(some)
        assert found.dtype == np.float64
        assert found.tolist() == [float(each) for each in some]
