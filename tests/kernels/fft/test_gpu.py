"""Transforms of one CuPy block, and of a long axis of few elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dask_dgpu as dgpu
from dask_dgpu.algorithms.pencil_fft import rank
from dask_dgpu.algorithms.pencil_fft.plan import Stage
from dask_dgpu.array.fft import long_axis
from dask_dgpu.kernels.fft import Transform, transform
from tests.array.fft.test_gpu import numbers, on_device

pytestmark = pytest.mark.gpu


DTYPES = ["bool", "int8", "uint16", "float16", "float32", "float64", "complex64", "complex128"]


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

    monkeypatch.setattr(rank, "SLICE", 1 << 12)
    values = np.random.default_rng(7).random((96, 128)).astype("complex64")
    block = cupy.asarray(values, order=order)
    chunks = tuple((n,) for n in values.shape)
    stage = Stage(chunks, (Transform("fft", axis, values.shape[axis]),))
    (found,) = rank.transform_slices(stage, {(0, 0): block}).values()
    assert found is block
    wanted = np.fft.fft(values, axis=axis)
    np.testing.assert_allclose(found.get(), wanted, rtol=1e-4, atol=1e-4)
