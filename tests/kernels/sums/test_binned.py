"""Exact sums of a block: rounded once, whatever the order."""

from __future__ import annotations

import itertools
import pickle
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.kernels.sums import binned
from dask_dgpu.kernels.sums.binned import Binned, PendingBinned
from dask_dgpu.kernels.sums.lanes import form_of, in_elements
from tests.support.exact import FAMILIES, exact, family, to_nearest
from tests.support.profiles import examples

DTYPES = ("bfloat16", "float16", "float32", "float64")


def sum_of(values: Any) -> Any:
    return binned.block_sum(values, (0,)).value(values.dtype.name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("n", [1, 2, 7, 1000, 8191, pytest.param(50_021, marks=pytest.mark.slow)])
def test_sum_is_the_exact_one_rounded(name: str, n: int, dtype: str) -> None:
    values = family(name, n, dtype)
    wanted = to_nearest(exact(values), dtype)
    assert sum_of(values) == wanted
    assert sum_of(np.sort(values)) == wanted
    assert sum_of(values[::-1]) == wanted


@examples(300)
@given(values=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=30))
def test_any_doubles(values: list[float]) -> None:
    block = np.array(values, float)
    assert sum_of(block) == to_nearest(exact(block), "float64")


@examples(300)
@given(
    values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=30),
    dtype=st.sampled_from(["bfloat16", "float16", "float32"]),
)
def test_any_singles_are_rounded_once(values: list[float], dtype: str) -> None:
    block = np.array(values, "float32")
    assert binned.block_sum(block, (0,)).value(dtype) == to_nearest(exact(block), dtype)


@pytest.mark.parametrize(
    ("values", "dtype", "wanted"),
    [
        ([1, 2.0**-53], "float64", 1.0),  # ties go to even
        ([1, 2.0**-53, 2.0**-1074], "float64", 1 + 2.0**-52),
        ([1 + 2.0**-52, 2.0**-53], "float64", 1 + 2.0**-51),
        ([1, 2.0**-24, 2.0**-140], "float32", 1 + 2.0**-23),
        ([1, 2.0**-24, -(2.0**-140)], "float32", 1.0),
        ([1, 2.0**-11, 2.0**-70], "float16", 1 + 2.0**-10),
        ([65504, 15.9], "float16", 65504.0),
        ([65504, 16], "float16", np.inf),
        ([1, 2.0**-8], "bfloat16", 1.0),
        ([1, 2.0**-8, 2.0**-70], "bfloat16", 1 + 2.0**-7),  # beyond single precision
        ([1, 2.0**-8, -(2.0**-1074)], "bfloat16", 1.0),
        ([1, 2.0**-7, 2.0**-8], "bfloat16", 1 + 2.0**-6),
        ([2.0**-134], "bfloat16", 0.0),
        ([2.0**-134, 2.0**-1074], "bfloat16", 2.0**-133),
        ([2.0**-133, 2.0**-134, 2.0**-160], "bfloat16", 2.0**-132),
        ([2.0**-132, 2.0**-134, -(2.0**-160)], "bfloat16", 2.0**-132),
        ([2.0**128, -(2.0**119), -(2.0**60)], "bfloat16", 2.0**128 - 2.0**120),
        ([2.0**128, -(2.0**119)], "bfloat16", np.inf),
        ([-(2.0**-1074)] * 3, "float64", -3 * 2.0**-1074),
    ],
)
def test_rounding(values: list[float], dtype: str, wanted: float) -> None:
    assert binned.block_sum(np.array(values), (0,)).value(dtype) == wanted


def test_overflow_that_cancels() -> None:
    huge = np.finfo(float).max
    block = np.array([huge] * 70 + [-huge] * 70 + [1.5])
    assert sum_of(block) == 1.5
    assert sum_of(np.array([huge, huge])) == np.inf
    assert sum_of(np.array([-huge, -huge])) == -np.inf
    assert sum_of(np.array([huge, huge / 2**54])) == huge
    assert sum_of(np.array([huge, huge / 2**53])) == np.inf


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
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [0, 5000])
def test_what_is_not_finite(values: list[float], wanted: float, dtype: str, n: int) -> None:
    ones = np.arange(2 * n) % 2 * 2 - 1.0
    block = np.concatenate([ones, values, ones]).astype(dtype)
    np.testing.assert_equal(sum_of(block), np.dtype(dtype).type(wanted))
    merged = binned.merged([binned.block_sum(part, (0,)) for part in np.array_split(block, 3)])
    np.testing.assert_equal(merged.value(dtype), np.dtype(dtype).type(wanted))


def test_one_sum_that_is_not_finite_spoils_no_other() -> None:
    block = np.ones((4000, 3))
    block[7, 1] = np.nan
    np.testing.assert_array_equal(binned.block_sum(block, (0,)).value(), [4000, np.nan, 4000])


@pytest.mark.parametrize(
    "shape", [(1, 5000, 3), (5000, 1, 3), (3, 2, 5000), (40, 50, 60), (9000, 5)]
)
def test_any_axes(shape: tuple[int, ...]) -> None:
    block = family("wide", int(np.prod(shape)), "float32").reshape(shape)
    for count in range(len(shape) + 1):
        for axes in itertools.combinations(range(len(shape)), count):
            sums = binned.block_sum(block, axes).value()
            turned = block[::-1].T
            there = tuple(len(shape) - 1 - axis for axis in axes)
            again = binned.block_sum(turned, there).value()
            if 0 not in axes:
                sums = sums[::-1]
            np.testing.assert_array_equal(sums.T, again)
            if len(axes) >= len(shape) - 1:
                kept = [k for k in range(len(shape)) if k not in axes]
                rows = np.moveaxis(block, kept, range(len(kept))).reshape(*sums.shape, -1)
                wanted = [to_nearest(exact(row), "float64") for row in rows.reshape(sums.size, -1)]
                wanted = np.reshape(wanted, sums.shape)
                np.testing.assert_array_equal(sums, wanted if 0 in axes else wanted[::-1])


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_sums_in_the_order_of_memory_are_restored(order: tuple[int, ...]) -> None:
    memory = np.arange(7 * 3 * 4).reshape(7, 3, 4)
    block, axis = memory.transpose(order), order.index(0)
    form = form_of(block.shape, in_elements(block), (axis,))
    sums, wanted = memory.sum(0).ravel(), block.sum(axis)
    np.testing.assert_array_equal(form.restored(sums), wanted)
    both = np.stack([sums, -sums])
    np.testing.assert_array_equal(form.restored(both, 1), np.stack([wanted, -wanted]))
    assert form.restored(both[:0], 1).shape == (0, *wanted.shape)


def test_integers_count_as_doubles_and_complex_numbers_as_two() -> None:
    assert binned.block_sum(np.arange(1000, dtype="int16"), (0,)).value() == 999 * 500
    block = np.full(3000, 1 - 2j, "complex64")
    np.testing.assert_array_equal(binned.block_sum(block, (0,)).value(), [3000, -6000])


def test_parts_are_the_whole() -> None:
    values = family("wide", 20_000, "float64")
    whole = binned.block_sum(values, (0,))
    for count in (2, 3, 17):
        parts = np.array_split(values, count)
        sums = [binned.block_sum(part, (0,)) for part in parts]
        assert bits(binned.merged(sums)) == bits(whole)
        assert bits(binned.merged(sums[::-1])) == bits(whole)


def test_nothing_to_sum() -> None:
    assert binned.block_sum(np.ones((0, 3)), (0,)).value().tolist() == [0, 0, 0]
    assert binned.block_sum(np.ones((3, 0)), (0,)).value().shape == (0,)
    assert binned.merged([binned.block_sum(np.ones(0), (0,))] * 3).value() == 0


def test_limbs_are_few_where_numbers_are_alike() -> None:
    assert len(binned.block_sum(np.random.default_rng(0).random((1000, 9)), (0,)).limbs) <= 4


def test_sums_on_their_way_are_fetched_when_somebody_looks() -> None:
    made = binned.block_sum(np.random.default_rng(1).random((50, 3)), (0,))
    fetched: list[Binned] = []

    def fetch() -> Binned:
        fetched.append(made)
        return made

    coming = PendingBinned(fetch, 640)
    again = coming.reshaped((1, 3))
    assert sys.getsizeof(coming) >= 640
    assert not fetched
    assert bits(again) == bits(made)
    assert again.value().shape == (1, 3)
    assert bits(binned.merged([coming, made])) == bits(binned.merged([made, made]))
    copy = pickle.loads(pickle.dumps(coming))
    assert type(copy) is Binned
    assert bits(copy) == bits(made)
    assert len(fetched) == 1


def bits(sums: Binned) -> bytes:
    return np.asarray(sums.value()).tobytes()
