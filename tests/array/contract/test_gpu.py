"""Contractions of CuPy blocks without a cluster: CuPy in, CuPy out, as NumPy computes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu

pytestmark = pytest.mark.gpu

DTYPES = ["bool", "int8", "uint64", "float16", "float32", "float64", "complex64", "complex128"]


@pytest.fixture(autouse=True, params=[1, 3], ids="ranks={}".format)
def enabled(request: pytest.FixtureRequest) -> Iterator[None]:
    with dgpu.enable(local_ranks=request.param, on_error="raise", when="always"):
        yield


def on_device(values: Any, chunks: Any) -> da.Array:
    import cupy

    return da.from_array(cupy.asarray(values), chunks=chunks, asarray=False)


def check(z: da.Array, expected: Any) -> None:
    import cupy

    assert dgpu.explain(z).rewritten
    value = z.compute(scheduler="threads")
    assert isinstance(value, cupy.ndarray)
    assert value.dtype == z.dtype
    np.testing.assert_array_equal(cupy.asnumpy(value), expected.astype(z.dtype))


def numbers(*shape: int, dtype: str = "float64", seed: int = 0) -> Any:
    """Small integers: exact in every dtype, and so are their contractions."""
    low = 0 if dtype[0] in "bu" else -3
    return np.random.default_rng(seed).integers(low, 4, shape).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("chunks", [(1, 30, 20), (4, 7, 40)])
def test_every_dtype_of_a_batch(dtype: str, chunks: tuple[int, ...]) -> None:
    a, b = numbers(8, 30, 40, dtype=dtype), numbers(8, 40, 20, dtype=dtype, seed=1)
    z = on_device(a, chunks) @ on_device(b, (chunks[0], chunks[2], 9))
    check(z, np.matmul(a.astype(z.dtype), b.astype(z.dtype)))


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_large_and_strided_matrices(dtype: str) -> None:
    a = numbers(3, 600, 520, dtype=dtype)
    x = on_device(a, (1, 600, 300))
    check(x @ x.transpose(0, 2, 1), a @ a.transpose(0, 2, 1))


@pytest.mark.parametrize(
    ("subscripts", "left", "right"),
    [
        ("ij,jk->ki", (40, 30), (30, 20)),
        ("bqd,bkd->kqb", (4, 9, 8), (4, 7, 8)),
        ("abc,bcd->ad", (6, 5, 8), (5, 8, 7)),
        ("abc,abc->", (6, 5, 8), (6, 5, 8)),
    ],
)
def test_einsum(subscripts: str, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = numbers(*left), numbers(*right, seed=1)
    z = da.einsum(subscripts, on_device(a, 4), on_device(b, 4))
    check(z, np.einsum(subscripts, a, b))
