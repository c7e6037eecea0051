"""Running sums and products of blocks."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu
from dask_dgpu.kernels.scan import cumprod, cumsum

SHAPES = [
    (1, 40),
    (2, 33),
    (31, 32),
    (33, 47),
    (1009, 64),
    (3, 257, 40),
    (2, 5, 3, 37),
    (100_003, 32),
]
DTYPES = ("float32", "float64", "int64", "int32", "uint8", "int16", "bool", "uint64")


def values(shape: tuple[int, ...], dtype: str) -> Any:
    rng = np.random.default_rng(len(shape))
    return (
        (rng.random(shape) * 100 - 50).astype(dtype) if dtype != "bool" else rng.random(shape) > 0.5
    )


def compare(found: Any, x: Any, axis: int, dtype: Any = None) -> None:
    """Compare a running sum with NumPy's in the widest dtype."""
    known = np.cumsum(x, axis=axis, dtype=dtype)
    assert (found.dtype, found.shape) == (known.dtype, known.shape)
    if known.dtype.kind != "f":
        np.testing.assert_array_equal(found, known)
        return
    exact = np.cumsum(x.astype("longdouble"), axis=axis)
    largest = np.cumsum(abs(x.astype("longdouble")), axis=axis)
    n, eps = x.shape[axis], np.finfo(known.dtype).eps
    assert (abs(found - exact) <= n * eps * largest).all()


@pytest.mark.parametrize("axis", [0, -1, None])
def test_on_a_host(axis: int | None) -> None:
    x = values((5, 7), "float32")
    np.testing.assert_array_equal(cumsum(x, axis=axis), np.cumsum(x, axis=axis))
    np.testing.assert_array_equal(cumprod(x, axis, "f8"), np.cumprod(x, axis, "f8"))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_axis(shape: tuple[int, ...], dtype: str) -> None:
    import cupy

    x = values(shape, dtype)
    for axis in range(-1, len(shape) - 1):
        compare(cumsum(cupy.asarray(x), axis=axis).get(), x, axis)
    compare(cumsum(cupy.asarray(x.T).T, axis=0, dtype="f8").get(), x, 0, "f8")


@pytest.mark.gpu
def test_special_values_and_products() -> None:
    import cupy

    x = np.ones((1000, 32))
    x[0], x[500, 3], x[700, 4], x[800, 4] = -0.0, np.nan, np.inf, -np.inf
    found = cumsum(cupy.asarray(x), axis=0).get()
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(found, np.cumsum(x, axis=0))
    assert np.signbit(found[0]).all()
    y = 1 + values((300, 32), "float64") / 1e5
    np.testing.assert_allclose(
        cumprod(cupy.asarray(y), axis=0).get(), np.cumprod(y, axis=0), rtol=300 * 2e-16
    )
    z = cupy.asarray(values((300, 32), "int64"))
    np.testing.assert_array_equal(cumprod(z, axis=0).get(), np.cumprod(z.get(), axis=0))


@pytest.mark.gpu
def test_what_the_kernel_leaves_to_cupy() -> None:
    import cupy

    for shape, dtype in (((9, 4), "float64"), ((9, 40), "complex64"), ((0, 40), "float32")):
        x = values(shape, dtype)
        found = cumsum(cupy.asarray(x), axis=0).get()
        np.testing.assert_allclose(found, np.cumsum(x, axis=0), rtol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("when", ["cheaper", "always"])
def test_dask_calls_the_kernel(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    from dask_dgpu.kernels.scan import cuda

    scanned, shapes = cuda.scanned, []

    def noting(operator: str, x: Any, axis: int, dtype: Any) -> Any:
        shapes.append(x.shape)
        return scanned(operator, x, axis, dtype)

    monkeypatch.setattr(cuda, "scanned", noting)
    x = values((100, 32), "float64")
    y = da.from_array(cupy.asarray(x), chunks=(25, 32), asarray=False).cumsum(axis=0)
    with dgpu.enable(local_ranks=1, when=when, on_error="raise"):
        compare(y.compute(scheduler="sync").get(), x, 0)
    assert shapes == [(25, 32)] * 4
