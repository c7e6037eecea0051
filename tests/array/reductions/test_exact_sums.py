"""Sums of both methods against exact ones: any length, overflow on the way, what is not finite."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from tests.support.exact import FAMILIES, exact, family, to_nearest, within_bound
from tests.support.profiles import examples

DTYPES = ("bfloat16", "float16", "float32", "float64")
LENGTHS = [1, 2, 7, 1000, 8191, pytest.param(100_003, marks=pytest.mark.slow)]
HUGE = np.finfo(float).max
EPS = np.finfo(float).eps


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with dask.config.set(scheduler="synchronous"):
        yield


def total(block: Any, method: Any, axis: Any = None, parts: int = 1, dtype: Any = None) -> Any:
    """Return the sum of an array, which has so many chunks along its first axis."""
    chunks = (-(-len(block) // parts), *block.shape[1:])
    x = da.from_array(block, chunks=chunks)
    with np.errstate(over="ignore"):
        return dgpu.sum(x, axis, dtype=dtype, method=method).compute()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("n", LENGTHS)
def test_any_length(name: str, n: int, dtype: str) -> None:
    values = family(name, n, dtype)
    wanted = to_nearest(exact(values), dtype)
    for given_ in (values, np.sort(values), values[::-1]):
        assert total(given_, "reproducible") == wanted
        value = total(given_, "compensated")
        assert value == wanted or within_bound(value, values, ml_dtypes.finfo(dtype).eps)


@examples(300)
@given(values=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=30))
def test_any_doubles(values: list[float]) -> None:
    block = np.array(values, float)
    assert total(block, "reproducible") == to_nearest(exact(block), "float64")


@pytest.mark.parametrize("name", FAMILIES)
def test_sums_along_a_strided_axis(name: str) -> None:
    values = family(name, 30_000, "float64").reshape(10_000, 3)
    bound, same = (total(values, method, 0) for method in ("compensated", "reproducible"))
    for k in range(3):
        assert within_bound(bound[k], values[:, k], EPS)
        assert same[k] == to_nearest(exact(values[:, k]), "float64")


def test_plain_sums_are_not_as_good() -> None:
    values = family("condition 1e16", 100_003, "float64")
    assert not within_bound(values.sum(), values, EPS)


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([HUGE] * 70 + [-HUGE] * 70 + [1.5], 1.5),
        ([HUGE, HUGE], np.inf),
        ([-HUGE, -HUGE], -np.inf),
        ([HUGE, HUGE / 2**54], HUGE),
        ([HUGE, HUGE / 2**53], np.inf),
        ([HUGE] * 9 + [-np.inf], -np.inf),
    ],
    ids=["cancels", "inf", "-inf", "rounded down", "rounded up", "-inf beside"],
)
def test_overflow(values: list[float], wanted: float) -> None:
    block = np.array(values)
    assert total(block, "reproducible") == wanted
    value = total(block, "compensated")
    assert value == wanted if np.isinf(wanted) else within_bound(value, block, EPS)


@pytest.mark.parametrize("parts", [1, 3])
def test_only_what_overflows_is_taken_in_larger_units(parts: int) -> None:
    """Subnormal numbers beside it keep their digits."""
    tiny = 5e-324
    block = np.array(
        [
            [HUGE, tiny, HUGE, 1],
            [HUGE, tiny, HUGE, HUGE],
            [-HUGE, tiny, HUGE, -1],
            [-HUGE, -tiny, 1, HUGE],
            [HUGE / 2, tiny, -HUGE, -HUGE],
        ]
    )
    values = total(block, "compensated", 0, parts)
    assert (values[1], values[2]) == (3 * tiny, np.inf)
    for k in (0, 1, 3):
        assert within_bound(values[k], block[:, k], EPS)


def test_large_blocks_that_overflow() -> None:
    half = np.full(1 << 17, HUGE / 3)
    block = np.concatenate([half, half, half, -half, -half])
    assert total(block, "compensated") == np.inf
    assert np.isinf(total(block[: 5 << 16].reshape(5, -1), "compensated", 0)).all()
    value = total(np.concatenate([block, -half]), "compensated")
    assert abs(value) <= block.size**2 * EPS**2 * half[0]


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([1, np.inf, 2], np.inf),
        ([1, -np.inf, 2], -np.inf),
        ([np.inf, 1, -np.inf], np.nan),
        ([np.nan, 1], np.nan),
        ([np.nan, np.inf], np.nan),
        ([-0.0, -0.0], 0.0),
    ],
)
@pytest.mark.parametrize("method", ["compensated", "reproducible"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [0, 5000])
def test_what_is_not_finite(
    values: list[float], wanted: float, dtype: str, method: Any, n: int
) -> None:
    ones = np.arange(2 * n) % 2 * 2 - 1.0
    block = np.concatenate([ones, values, ones]).astype(dtype)
    for parts in (1, 3):
        np.testing.assert_equal(float(total(block, method, parts=parts)), wanted)


@pytest.mark.parametrize("method", ["compensated", "reproducible"])
def test_one_sum_that_is_not_finite_spoils_no_other(method: Any) -> None:
    block = np.ones((4000, 3))
    block[7, 1] = np.nan
    np.testing.assert_array_equal(total(block, method, 0), [4000, np.nan, 4000])


@pytest.mark.parametrize(
    "shape", [(1, 5000, 3), (5000, 1, 3), (3, 2, 5000), (40, 50, 60), (9000, 5)]
)
def test_any_axes(shape: tuple[int, ...]) -> None:
    block = family("wide", int(np.prod(shape)), "float32").reshape(shape)
    for count in range(len(shape) + 1):
        for axes in itertools.combinations(range(len(shape)), count):
            sums = total(block, "reproducible", axes, dtype="float64")
            there = tuple(len(shape) - 1 - axis for axis in axes)
            again = total(block[::-1].T, "reproducible", there, dtype="float64")
            sums = sums if 0 in axes else sums[::-1]
            np.testing.assert_array_equal(sums.T, again)
            if len(axes) >= len(shape) - 1:
                kept = [k for k in range(len(shape)) if k not in axes]
                rows = np.moveaxis(block, kept, range(len(kept))).reshape(sums.size, -1)
                wanted = np.reshape([to_nearest(exact(row), "float64") for row in rows], sums.shape)
                np.testing.assert_array_equal(sums, wanted if 0 in axes else wanted[::-1])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_large_blocks_of_narrow_numbers(dtype: str) -> None:
    block = np.ones((3, 1 << 18), dtype)
    wide = {"dtype": "float64"}
    np.testing.assert_array_equal(total(block, "compensated", 1, **wide), [1 << 18] * 3)
    assert total(block, "compensated", (0, 1), **wide) == 3 << 18
