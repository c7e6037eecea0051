"""Overlapping CuPy blocks without a cluster: as plain Dask makes them of NumPy blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu

pytestmark = pytest.mark.gpu

DTYPES = ["bool", "int8", "uint16", "float16", "float32", "float64", "complex64", "complex128"]
A = np.random.default_rng(2).random((14, 21))


@pytest.fixture(autouse=True, params=[1, 3], ids="ranks={}".format)
def enabled(request: pytest.FixtureRequest) -> Iterator[None]:
    with dgpu.enable(local_ranks=request.param, on_error="raise", when="always"):
        yield


def on_device(values: Any, chunks: Any) -> da.Array:
    import cupy

    return da.from_array(cupy.asarray(values), chunks=chunks, asarray=False)


def check(make: Callable[[da.Array], da.Array], values: Any, chunks: Any) -> None:
    """Compare what a function makes of CuPy blocks with what plain Dask makes of NumPy's."""
    import cupy

    z = make(on_device(values, chunks))
    assert dgpu.explain(z).rewritten
    value = z.compute(scheduler="threads")
    assert isinstance(value, cupy.ndarray)
    with dask.config.set(array_optimize=da.optimize):
        expected = make(da.from_array(values, chunks=chunks)).compute(scheduler="sync")
    np.testing.assert_array_equal(cupy.asnumpy(value), expected, strict=True)


def doubled(block: Any) -> Any:
    return block + block[::-1, ::-1]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(dtype: str) -> None:
    check(lambda x: da.overlap.overlap(x, 2, "reflect"), (A * 9).astype(dtype), (5, 8))


@pytest.mark.parametrize("boundary", ["reflect", "periodic", "nearest", "none", 0.25])
@pytest.mark.parametrize("depth", [1, {0: 3, 1: 0}, {0: 1, 1: 4}])
def test_every_boundary(boundary: Any, depth: Any) -> None:
    def steps(x: da.Array) -> da.Array:
        for _ in range(3):
            x = x.map_overlap(doubled, depth=depth, boundary=boundary, dtype=float, meta=x._meta)
        return x

    check(steps, A, (5, 8))


def test_asymmetric_depth() -> None:
    depth = {0: (1, 2), 1: (0, 3)}
    check(
        lambda x: x.map_overlap(doubled, depth=depth, boundary="none", dtype=float, meta=x._meta),
        A,
        (4, 7),
    )


def test_parts_and_elementwise_work() -> None:
    def part(x: da.Array) -> da.Array:
        y = x + x.map_overlap(doubled, depth=1, boundary=0, dtype=float, meta=x._meta)
        return (y * 2)[:6, 3:9]

    check(part, A, (5, 8))
