"""Transforms of CuPy blocks: CuPy in, CuPy out, declared and computed."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu

pytestmark = pytest.mark.gpu

NAMES = [
    *("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"),
    *("fft2", "ifft2", "rfft2", "irfft2", "fftn", "ifftn", "rfftn", "irfftn"),
]


def numbers(*shape: int, dtype: str = "float64") -> Any:
    rng = np.random.default_rng(sum(shape))
    values = rng.random(shape) + 0.5
    return (values if dtype[0] in "fc" else 5 * values).astype(dtype)


def on_device(values: Any, chunks: Any) -> da.Array:
    import cupy

    return da.from_array(cupy.asarray(values), chunks=chunks, asarray=False)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chunks", [(-1, -1), (5, 4), (-1, 4)])
@pytest.mark.parametrize("layout", ["any", "input"])
def test_cupy_in_cupy_out(name: str, chunks: Any, layout: str) -> None:
    import cupy

    a = numbers(12, 10, dtype="float32")
    with dask.config.set({"dgpu.fft.output-layout": layout}):
        y = getattr(dgpu.fft, name)(on_device(a, chunks))
    value, expected = y.compute(scheduler="synchronous"), getattr(np.fft, name)(a)
    assert isinstance(y._meta, cupy.ndarray)
    assert isinstance(value, cupy.ndarray)
    assert y.dtype == value.dtype == expected.dtype
    assert y.shape == value.shape
    error = np.linalg.norm(cupy.asnumpy(value) - expected)
    assert error <= 8 * np.finfo("float32").eps * 4 * np.linalg.norm(expected)


@pytest.mark.parametrize("chunks", [(-1, -1), (5, 4)])
@pytest.mark.parametrize("n", [3, 8, 17])
def test_crops_and_pads(chunks: Any, n: int) -> None:
    import cupy

    a = numbers(12, 10)
    y = dgpu.fft.irfftn(on_device(a, chunks), s=(n, n + 1), axes=(1, 0), norm="ortho")
    expected = np.fft.irfftn(a, s=(n, n + 1), axes=(1, 0), norm="ortho")
    np.testing.assert_allclose(cupy.asnumpy(y.compute()), expected, rtol=1e-12, atol=1e-12)


def test_empty() -> None:
    import cupy

    y = dgpu.fft.fft2(on_device(np.zeros((0, 6)), (1, 2)), s=(4, 6))
    value = y.compute()
    assert isinstance(y._meta, cupy.ndarray)
    assert isinstance(value, cupy.ndarray)
    assert value.shape == (4, 6)
    assert not value.any()
