"""Rechunks of CuPy blocks without a cluster: CuPy in, CuPy out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu

pytestmark = pytest.mark.gpu

DTYPES = ["bool", "int8", "uint16", "float16", "float32", "float64", "complex64", "complex128"]
A = np.arange(6 * 17 * 31).reshape(6, 17, 31)


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
    np.testing.assert_array_equal(cupy.asnumpy(value), expected, strict=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(dtype: str) -> None:
    a = A.astype(dtype)
    check(on_device(a, (6, 17, 4)).rechunk((1, 5, 31)), a)


@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (0, 2, 1)])
def test_transposes(axes: tuple[int, ...]) -> None:
    check(on_device(A, (6, 5, 8)).transpose(axes).rechunk((5, 3, 17)), A.transpose(axes))


def test_strided_blocks() -> None:
    check(on_device(A, (6, 8, 31))[:, ::2, ::-1].rechunk((1, 9, 31)), A[:, ::2, ::-1])


def test_parts_and_operands_of_different_chunks() -> None:
    s = A[0, :, :17]
    x = on_device(s, (17, 3))
    check(x.rechunk((4, 17))[:5], s[:5])
    check(x + x.T, s + s.T)


def test_before_and_after_a_product() -> None:
    s = A[0].astype(float)
    x = on_device(s, (17, 5))
    check((x.rechunk((4, 7)) @ x.T.rechunk((7, 17))).rechunk(6), s @ s.T)
