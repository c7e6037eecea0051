"""Transforms of CuPy blocks: CuPy in, CuPy out, declared and computed."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu
from dask_dgpu.algorithms.pencil_fft import Transform, slices
from dask_dgpu.algorithms.pencil_fft.plan import Stage
from dask_dgpu.array.fft import long_axis
from dask_dgpu.array.fft.call import NAMES
from dask_dgpu.kernels.fft import transform

pytestmark = pytest.mark.gpu

DTYPES = ["bool", "int8", "uint16", "float16", "float32", "float64", "complex64", "complex128"]


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


@pytest.mark.parametrize("dtype", DTYPES)
def test_kernel_has_the_dtype_of_numpy(dtype: str) -> None:
    import cupy

    a = numbers(6, 5, dtype=dtype)
    real = [] if dtype.startswith("c") else ["rfft", "ihfft"]
    for kind in ("fft", "ifft", "irfft", "hfft", *real):
        result = transform(cupy.asarray(a), [Transform(kind, 0, 7)])
        expected = transform(a, [Transform(kind, 0, 7)])
        assert result.dtype == expected.dtype
        np.testing.assert_allclose(cupy.asnumpy(result), expected, rtol=1e-2, atol=1e-2)


def test_kernel_leaves_its_input_alone() -> None:
    import cupy

    block = cupy.asarray(numbers(6, 5, 4, dtype="complex64"))
    before = block.copy()
    transform(block, [Transform("ifft", 2, 4), Transform("ifft", 0, 6), Transform("irfft", 1, 8)])
    assert bool((block == before).all())


@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
@pytest.mark.parametrize("dtype", ["int16", "float32", "float64"])
@pytest.mark.parametrize("n", [3600, 3607])
@pytest.mark.parametrize("ranks", [None, 3])
def test_a_long_axis(
    name: str, dtype: str, n: int, ranks: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import cupy

    monkeypatch.setattr(long_axis, "SMALL", 0)
    a = numbers(2, n, dtype=dtype)
    y = getattr(dgpu.fft, name)(on_device(a, (2, 500)), n=n)
    expected = getattr(np.fft, name)(a, n=n)
    if ranks is None:
        value = y.compute(scheduler="synchronous")
    else:
        with dgpu.enable(local_ranks=ranks, on_error="raise", when="always"):
            value = y.compute(scheduler="threads")
    assert isinstance(y._meta, cupy.ndarray)
    assert isinstance(value, cupy.ndarray)
    assert y.numblocks[1] == 8
    assert y.dtype == value.dtype == expected.dtype
    error = np.linalg.norm(cupy.asnumpy(value) - expected)
    assert error <= 8 * np.finfo(value.dtype).eps * np.log2(n) * np.linalg.norm(expected)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("order", ["C", "F"])
def test_slices_of_a_block_are_transformed_in_place(
    axis: int, order: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import cupy

    monkeypatch.setattr(slices, "SLICE", 1 << 12)
    values = np.random.default_rng(7).random((96, 128)).astype("complex64")
    block = cupy.asarray(values, order=order)
    chunks = tuple((n,) for n in values.shape)
    stage = Stage(chunks, (Transform("fft", axis, values.shape[axis]),))
    (found,) = slices.transform_slices(stage, {(0, 0): block}).values()
    assert found is block
    wanted = np.fft.fft(values, axis=axis)
    np.testing.assert_allclose(found.get(), wanted, rtol=1e-4, atol=1e-4)
