"""Sums of CuPy blocks: the bits that NumPy blocks give, bounds, any axes and strides."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu
from tests.support.exact import exact, family, to_nearest

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("method", ["compensated", "reproducible"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "complex128", "int16"])
def test_cupy_in_cupy_out(method: Any, dtype: str) -> None:
    import cupy

    a = np.random.default_rng(2).integers(-9, 9, (60, 44)).astype(dtype)
    x = da.from_array(cupy.asarray(a), chunks=(7, 13), asarray=False)
    for axis in (None, 0, (0, 1), -1):
        for name in ("sum", "mean"):
            result = getattr(dgpu, name)(x, axis, method=method)
            value = result.compute(scheduler="synchronous")
            assert isinstance(value, cupy.ndarray)
            assert value.dtype == result.dtype
            wanted = getattr(np, name)(a, axis=axis)
            np.testing.assert_allclose(cupy.asnumpy(value), wanted, rtol=2e-3)


def test_numpy_and_cupy_chunks_have_the_same_bits() -> None:
    import cupy

    values = family("condition 1e16", 30_000, "float32").reshape(300, 100)
    on_host = da.from_array(values, chunks=(70, 30))
    on_device = da.from_array(cupy.asarray(values), chunks=(100, 55), asarray=False)
    for axis in (None, 0, 1):
        wanted = dgpu.sum(on_host, axis, method="reproducible").compute(scheduler="synchronous")
        found = dgpu.sum(on_device, axis, method="reproducible").compute(scheduler="synchronous")
        assert cupy.asnumpy(found).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("method", ["compensated", "reproducible"])
def test_bfloat16(method: Any) -> None:
    import cupy

    dtype = np.dtype("bfloat16")
    a = np.random.default_rng(2).integers(-9, 9, (60, 44)).astype(dtype)
    here = da.from_array(a, chunks=(7, 13))
    there = da.from_array(cupy.asarray(a), chunks=(20, 30), asarray=False)
    for name in ("sum", "mean", "var", "std", "norm", "max", "min"):
        arguments = {} if name in ("max", "min") else {"method": method}
        for axis in (None, 0, -1):
            wanted, found = (
                getattr(dgpu, name)(x, axis, **arguments).compute(scheduler="synchronous")
                for x in (here, there)
            )
            assert isinstance(found, cupy.ndarray)
            assert found.dtype == wanted.dtype == ("float64" if name == "norm" else dtype)
            assert cupy.asnumpy(found).tobytes() == wanted.tobytes()
    wanted, found = (
        dgpu.dot(x[0], x[1], method=method).compute(scheduler="synchronous") for x in (here, there)
    )
    assert cupy.asnumpy(found).tobytes() == wanted.tobytes()
    wide = np.random.default_rng(3).standard_normal((6, 44))
    wanted, found = (
        dgpu.sum(da.from_array(block, asarray=False), 0, dtype=dtype, method=method).compute(
            scheduler="synchronous"
        )
        for block in (wide, cupy.asarray(wide))
    )
    assert cupy.asnumpy(found).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("method", ["compensated", "reproducible"])
def test_narrow_numbers_in_double_precision(method: Any, dtype: str) -> None:
    import cupy

    values = np.tile([1, 1e-20, -1, 1e-40], 50_000).astype(dtype)
    wanted = to_nearest(exact(values), "float64")
    for block, axis in ((values, None), (np.stack([values] * 3, axis=1), 0)):
        x = da.from_array(cupy.asarray(block), chunks=70_001, asarray=False)
        sums = dgpu.sum(x, axis, dtype=float, method=method).compute(scheduler="synchronous")
        np.testing.assert_allclose(cupy.asnumpy(sums), wanted, rtol=1e-15)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("method", ["compensated", "reproducible"])
def test_products_keep_subnormal_numbers(method: Any, dtype: str) -> None:
    import cupy

    def both(function: Any, *vectors: Any, **given: Any) -> list[float]:
        """Return what it is of NumPy blocks and of CuPy blocks."""
        made = []
        for place in (np.asarray, cupy.asarray):
            x = [da.from_array(place(each), chunks=300, asarray=False) for each in vectors]
            result = function(*x, method=method, **given)
            made.append(float(result.compute(scheduler="synchronous")))
        return made

    x, y = np.full(1000, 1e-40).astype(dtype), np.full(1000, 1e30).astype(dtype)
    wanted, found = both(dgpu.dot, x, y)
    assert found == wanted > 0
    if dtype == "float32":
        wanted, found = both(dgpu.norm, x)
        assert found == wanted > 0
        x[::3] *= -2
        wanted, found = both(dgpu.var, x, dtype="float64")
        assert found == pytest.approx(wanted, rel=1e-14, abs=0)
        assert found > 0
