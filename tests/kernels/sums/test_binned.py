"""Exact sums of a block: rounded once, whatever the order."""

from __future__ import annotations

import itertools
import pickle
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.kernels.sums import binned
from dask_dgpu.kernels.sums.binned import Binned, PendingBinned
from dask_dgpu.kernels.sums.lanes import form_of, in_elements
from tests.support.exact import exact, to_nearest
from tests.support.profiles import examples


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
