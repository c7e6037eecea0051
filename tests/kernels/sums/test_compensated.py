"""Compensated sums of a block: within their bound, along any axes, at any strides."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from dask.sizeof import sizeof
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.kernels.sums import compensated
from dask_dgpu.kernels.sums.lanes import Walk, steps_of
from dask_dgpu.kernels.sums.partial import partial_sum
from tests.support.profiles import examples

Array = Any
DTYPES = ("bfloat16", "float16", "float32", "float64")


@examples(300)
@given(data=st.data(), dtype=st.sampled_from([*DTYPES, "int32", "bool", "complex64"]))
def test_any_shape_axes_and_strides(data: st.DataObject, dtype: str) -> None:
    lengths = st.sampled_from([1, 2, 3, 5, 16, 17, 40, 129])
    shape = data.draw(st.lists(lengths, min_size=0, max_size=4))
    while np.prod(shape) > 40_000:
        shape.pop()
    rng = np.random.default_rng(len(shape))
    block = np.asarray(rng.integers(-50, 50, shape)).astype(dtype)
    if dtype == "complex64":
        block = block * (1 + 2j)
    block = block.transpose(data.draw(st.permutations(range(block.ndim))))
    steps = data.draw(
        st.lists(st.sampled_from([1, -1, 2, -3]), min_size=block.ndim, max_size=block.ndim)
    )
    block = block[(..., *(slice(None, None, step) for step in steps))]
    if data.draw(st.booleans()):
        block = np.broadcast_to(block, (3, *block.shape))
    axes = data.draw(st.sets(st.sampled_from(range(block.ndim)))) if block.ndim else set()
    values = compensated.block_sum(block, tuple(axes)).value()
    wide = np.complex128 if dtype == "complex64" else np.float64
    if dtype == "complex64":
        values = values[..., 0] + 1j * values[..., 1]
    np.testing.assert_array_equal(values, block.sum(axis=tuple(axes), dtype=wide))


@pytest.mark.parametrize("shape", [(1, 5000, 3), (5000, 1, 3), (3, 2, 5000), (70, 70, 70)])
def test_long_axes_beside_short_ones(shape: tuple[int, ...]) -> None:
    block = np.random.default_rng(1).integers(-9, 9, shape).astype("float32")
    for count in range(4):
        for axes in itertools.combinations(range(3), count):
            for view in (block, block.T, np.moveaxis(block, 0, 1)):
                sums = compensated.block_sum(view, axes).value()
                np.testing.assert_array_equal(sums, view.sum(axes, dtype=float))


@pytest.mark.parametrize("change", ["byte order", "not aligned", "read only"])
def test_memory_of_any_kind(change: str) -> None:
    block = np.arange(1000.0)
    if change == "byte order":
        block = block.astype(">f8")
    elif change == "not aligned":
        block = np.frombuffer(b"\0" + block.tobytes(), np.uint8)[1:].view("f8")
    else:
        block.flags.writeable = False
    assert compensated.block_sum(block, (0,)).value() == 999 * 500


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("step", [1, 2])
def test_each_number_is_read_once_and_where_it_is(
    step: int, order: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    block = np.ones((37, 80, 131 * step), "float32")[..., ::step].transpose(order)
    flat, _, _, steps = steps_of(block, axes)
    assert np.shares_memory(flat, block)
    read = np.zeros(len(flat), int)
    for walk in (Walk(*walk) for _, walks in steps for walk in walks):
        outer = walk.across * np.arange(walk.outer)[:, None, None]
        rows = walk.down * np.arange(walk.rows)[:, None]
        np.add.at(read, walk.start + outer + rows + walk.along * np.arange(walk.width), 1)
    assert read.sum() == block.size
    assert read.max() == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int32"])
@pytest.mark.parametrize("result", ["float32", "float64"])
@pytest.mark.parametrize("parts", [False, True])
def test_what_is_set_apart_is_kept(
    monkeypatch: pytest.MonkeyPatch, dtype: str, result: str, parts: bool
) -> None:
    """Sums of doubles, to which other numbers are widened, have infinities only there."""
    if parts:
        monkeypatch.setattr("dask_dgpu.kernels.sums.conversion.PART", 3)
    numbers = np.array([1, 2, 3, 4, 5, 6, 7, 8]).astype(dtype)
    pair = compensated.block_sum(numbers, (0,), result)
    assert pair.value() == 36
    assert (pair.large is None) == (result == "float32")
    for value in () if dtype == "int32" else (np.inf, -np.inf, np.nan):
        numbers[4] = value
        np.testing.assert_equal(
            float(compensated.block_sum(numbers, (0,), result).value()), float(value)
        )


def test_the_size_of_a_partial_sum_is_that_of_its_arrays() -> None:
    for method in ("compensated", "reproducible"):
        small, large = (
            sizeof(partial_sum(np.ones((2, length)), (0,), method, "float64"))
            for length in (1, 10_001)
        )
        assert large - small >= 9 * 10_000
