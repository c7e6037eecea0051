"""Exact sums of digits: the work of GPUs, on NumPy blocks, against the sums of NumPy blocks."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from dask_dgpu.kernels.sums import binned, digits
from dask_dgpu.kernels.sums.binned import Binned
from dask_dgpu.kernels.sums.digits import sum_digits
from tests.support.exact import FAMILIES, exact, family, to_nearest

KINDS = {
    "usual": lambda x, rng: x,
    "wide": lambda x, rng: np.ldexp(x, rng.integers(-1074, 1000, x.shape)),
    "subnormal": lambda x, rng: np.ldexp(x, -1050),
    "subnormal singles": lambda x, rng: np.ldexp(x, -140),
    "huge": lambda x, rng: np.ldexp(np.clip(x, -1, 1), 1023),
    "zero": lambda x, rng: -0.0 * x,
    "one sign": lambda x, rng: -abs(x),
    "infinite": lambda x, rng: np.where(rng.random(x.shape) < 0.1, np.inf, x),
    "nothing finite": lambda x, rng: np.copysign(np.inf, x),
    "NaN": lambda x, rng: np.where(rng.random(x.shape) < 0.1, -np.nan, x),
}


def block(kind: str, shape: tuple[int, ...], dtype: str) -> Any:
    rng = np.random.default_rng(len(shape))
    with np.errstate(all="ignore"):
        return KINDS[kind](rng.standard_normal(shape), rng).astype(dtype)


def same(found: Binned, wanted: Binned) -> None:
    for dtype in ("bfloat16", "float16", "float32", "float64"):
        value, other = (np.asarray(each.value(dtype)) for each in (found, wanted))
        assert value.shape == other.shape
        assert value.dtype == other.dtype
        np.testing.assert_array_equal(value.astype(float), other.astype(float))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_any_numbers_along_any_axes(kind: str, dtype: str) -> None:
    for shape in ((1,), (7,), (50, 3), (3, 50), (2, 30, 5)):
        x = block(kind, shape, dtype)
        for count in range(len(shape) + 1):
            for axes in itertools.combinations(range(len(shape)), count):
                same(sum_digits(x, axes), binned.block_sum(x, axes))
                same(sum_digits(x.T, axes), binned.block_sum(x.T, axes))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("n", [1, 2, 7, 1000])
def test_hard_sums(name: str, n: int, dtype: str) -> None:
    values = family(name, n, dtype)
    assert sum_digits(values, (0,)).value(dtype) == to_nearest(exact(values), dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_sums_of_too_many_numbers_are_split(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for most in (1, 7, 40):
        monkeypatch.setattr(digits, "EXACT", most)
        for x in (block(kind, (9, 53, 3), "float64"), block(kind, (3, 257, 41), "float32").T):
            for axes in ((), (1,), (0, 1), (0, 2), (0, 1, 2)):
                same(sum_digits(x, axes), binned.block_sum(x, axes))


def test_parts_with_other_limbs_are_merged() -> None:
    parts = [block(kind, (5000, 3), "float64") for kind in KINDS]
    for some in (parts[:7], parts[3:], parts):
        found = binned.merged([sum_digits(part, (1,)) for part in some])
        same(found, binned.block_sum(np.concatenate(some, axis=1), (1,)))
