"""Compensated sums of a block: within their bound, along any axes, at any strides."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_dtypes import finfo

from dask_dgpu.kernels.sums import compensated
from dask_dgpu.kernels.sums.compensated import Pair
from dask_dgpu.kernels.sums.conversion import narrowed
from dask_dgpu.kernels.sums.lanes import Walk, steps_of
from dask_dgpu.kernels.sums.partial import finished, partial_sum
from tests.support.exact import FAMILIES, family, within_bound
from tests.support.profiles import examples

Array = Any
DTYPES = ("bfloat16", "float16", "float32", "float64")


def value_of(pair: Pair, dtype: str) -> Any:
    with np.errstate(over="ignore"):
        return narrowed(pair.value(), dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("n", [1, 2, 7, 1000, 8191, pytest.param(100_003, marks=pytest.mark.slow)])
def test_error_is_within_the_bound(name: str, n: int, dtype: str) -> None:
    values = family(name, n, dtype)
    value = value_of(compensated.block_sum(values, (0,)), dtype)
    assert within_bound(value, values, finfo(dtype).eps)


@pytest.mark.parametrize("name", FAMILIES)
def test_error_is_within_the_bound_along_a_strided_axis(name: str) -> None:
    values = family(name, 30_000, "float64").reshape(10_000, 3)
    sums = compensated.block_sum(values, (0,)).value()
    for k in range(3):
        assert within_bound(sums[k], values[:, k], np.finfo(float).eps)


def test_plain_sum_is_not_as_good() -> None:
    values = family("condition 1e16", 100_003, "float64")
    assert not within_bound(values.sum(), values, np.finfo(float).eps)


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


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([1, np.inf, 2], np.inf),
        ([1, -np.inf, 2], -np.inf),
        ([np.inf, 1, -np.inf], np.nan),
        ([np.nan, 1], np.nan),
        ([np.nan, np.inf], np.nan),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [0, 5000])
def test_what_is_not_finite(values: list[float], wanted: float, dtype: str, n: int) -> None:
    block = np.concatenate([np.ones(n), values, np.ones(n)]).astype(dtype)
    np.testing.assert_equal(compensated.block_sum(block, (0,)).value(), wanted)
    merged = compensated.merged(
        [compensated.block_sum(part, (0,)) for part in np.array_split(block, 3)]
    )
    np.testing.assert_equal(merged.value(), wanted)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int32"])
@pytest.mark.parametrize("result", ["float32", "float64"])
@pytest.mark.parametrize("parts", [False, True])
def test_what_a_gpu_sets_apart_is_kept(
    monkeypatch: pytest.MonkeyPatch, dtype: str, result: str, parts: bool
) -> None:
    """Its kernel for doubles, to which other numbers are widened, has infinities only there."""
    own = compensated._sum_of

    def set_apart(block: Array, axes: Any) -> Pair:
        if block.dtype != np.float64:
            return own(block, axes)
        is_large = ~(abs(block) < 2.0**900)
        large = own(np.where(is_large, block, 0) / compensated.LARGE, axes)
        return Pair(*own(np.where(is_large, 0, block), axes).arrays(), large)

    monkeypatch.setattr(compensated, "_sum_of", set_apart)
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


def test_overflow_on_the_way() -> None:
    huge = np.finfo("float32").max
    block = np.array([huge, huge, -huge, -huge, 1], "float32")
    assert compensated.block_sum(block, (0,)).value() == 1
    block = np.full(9, np.finfo(float).max)
    assert compensated.block_sum(block, (0,)).value() == np.inf
    assert compensated.block_sum(np.append(block, -np.inf), (0,)).value() == -np.inf


@pytest.mark.parametrize("parts", [1, 3])
def test_only_what_overflows_is_taken_in_larger_units(parts: int) -> None:
    """Subnormal numbers beside it keep their digits."""
    huge, tiny = np.finfo(float).max, 5e-324
    block = np.array(
        [
            [huge, tiny, huge, 1],
            [huge, tiny, huge, huge],
            [-huge, tiny, huge, -1],
            [-huge, -tiny, 1, huge],
            [huge / 2, tiny, -huge, -huge],
        ]
    )
    pairs = [compensated.block_sum(part, (0,)) for part in np.array_split(block, parts)]
    values = compensated.merged(pairs).value()
    assert (values[1], values[2]) == (3 * tiny, np.inf)
    for k in (0, 1, 3):
        assert within_bound(values[k], block[:, k], np.finfo(float).eps)


def test_large_blocks_that_overflow() -> None:
    """They are taken in larger units part after part: no copy of a whole block is made."""
    half = np.full(1 << 17, np.finfo(float).max / 3)
    block = np.concatenate([half, half, half, -half, -half])
    value = compensated.block_sum(block, (0,)).value()
    assert value == np.inf
    value = compensated.block_sum(block[: 5 << 16].reshape(5, -1), (0,)).value()
    assert np.isinf(value).all()
    value = compensated.block_sum(np.concatenate([block, -half]), (0,)).value()
    assert abs(value) <= block.size**2 * np.finfo(float).eps ** 2 * half[0]


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_nothing_to_sum(shape: tuple[int, ...]) -> None:
    block = np.ones(shape)
    for axes in [(0,), tuple(range(len(shape)))]:
        np.testing.assert_array_equal(compensated.block_sum(block, axes).value(), block.sum(axes))


def test_pairs_are_merged_without_loss() -> None:
    values = family("condition 1e16", 1000, "float64")
    pairs = [compensated.block_sum(part, (0,)) for part in np.array_split(values, 13)]
    assert within_bound(compensated.merged(pairs).value(), values, np.finfo(float).eps)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_large_blocks_of_other_dtypes_are_converted_in_parts(dtype: str) -> None:
    block = np.ones((3, 1 << 18), dtype)
    np.testing.assert_array_equal(compensated.block_sum(block, (1,)).value(), [1 << 18] * 3)
    assert compensated.block_sum(block, (0, 1)).value() == 3 << 18


def test_a_device_sees_the_arrays_of_a_partial_sum() -> None:
    block = np.arange(6.0).reshape(2, 3)
    seen: list[Array] = []

    def copied(array: Array) -> Array:
        seen.append(array)
        return array.copy()

    pair = partial_sum(block, (0,), "compensated", "float64")
    same = pair.map_arrays(copied)
    assert len(seen) == 4
    assert isinstance(same.sums, Pair)
    assert not any(map(np.shares_memory, seen, same.sums.arrays()))
    np.testing.assert_array_equal(finished(same, "sum", "float64", (0,), False), block.sum(axis=0))
    exact = partial_sum(block, (0,), "reproducible", "float64")
    assert exact.map_arrays(copied) is exact
