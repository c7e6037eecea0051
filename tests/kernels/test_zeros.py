"""Arrays without their zeros, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.kernels import zeros

DTYPES = ["bool", "int8", "uint16", "float16", "float32", "int64", "complex64", "complex128"]


def check(values: Any, xp: Any = np) -> int:
    """Compress and expand an array; return the bytes between."""
    nonzero = int(zeros.count_nonzero(values))
    count = zeros.numbers(values.size, values.itemsize)
    nbytes = zeros.compressed_bytes(nonzero, count, values.itemsize)
    message = xp.full(nbytes, 0xAB, "uint8")
    out = xp.full(values.shape, 1, values.dtype)
    if nonzero:
        zeros.compress(values, nonzero, message)
        zeros.expand(message, nonzero, values.dtype.name, out)
    else:
        assert nbytes == 0
        out[...] = 0
    assert bytes(out) == bytes(values.copy())
    return nbytes


@given(st.sampled_from(DTYPES), st.integers(0, 40), st.integers(1, 40), st.floats(0, 1))
def test_nothing_is_lost(dtype: str, rows: int, columns: int, density: float) -> None:
    rng = np.random.default_rng(rows)
    values = rng.integers(0, 256, (rows, columns * np.dtype(dtype).itemsize), "uint8")
    values = (values & 1).view(bool) if dtype == "bool" else values.view(dtype)
    values[rng.random(values.shape) >= density] = 0
    check(values)
    check(values[::2].T)


def test_negative_zero_is_a_number() -> None:
    values = np.array([0.0, -0.0, 0.0], "float32")
    assert zeros.count_nonzero(values) == 1
    check(values)


@pytest.mark.parametrize(
    ("nonzero", "nbytes"),
    [(0, 0), (1, 4 + 4), (100, 8 * 100), (5000, 4 * 5000 + 12_500)],
    ids=["nothing", "a position", "positions", "bits"],
)
def test_the_smaller_form(nonzero: int, nbytes: int) -> None:
    values = np.zeros(100_000 if nonzero > 100 else 10_000, "float32")
    values[np.arange(nonzero) * 7] = 1
    assert check(values) == nbytes


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("density", [0.0, 0.01, 0.3, 1.0])
def test_on_a_gpu(dtype: str, density: float) -> None:
    import cupy

    rng = np.random.default_rng(0)
    values = (rng.random((67, 129)) < density).astype(dtype)
    for each in (values, values.T, values[::3]):
        check(cupy.asarray(each), cupy)
