"""Cosine and sine transforms and Poisson's equation on CuPy blocks: CuPy in, CuPy out."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.fft

import dask_dgpu as dgpu
from tests.array.poisson.test_poisson import BOUNDARIES
from tests.array.poisson.test_poisson import laplacian as operator

pytestmark = pytest.mark.gpu


def numbers(shape: tuple[int, ...], dtype: str) -> Any:
    rng = np.random.default_rng(sum(shape))
    values = rng.random(shape) - 0.4
    if dtype[0] == "c":
        values = values + 1j * rng.random(shape)
    return (values if dtype[0] in "fc" else 9 * values).astype(dtype)


def on_device(values: Any, chunks: Any) -> da.Array:
    import cupy

    return da.from_array(cupy.asarray(values), chunks=chunks, asarray=False)


def close(value: Any, wanted: Any) -> None:
    import cupy

    assert isinstance(value, cupy.ndarray)
    value = cupy.asnumpy(value)
    bound = 16 * float(np.finfo(value.dtype).eps) * max(1.0, np.log2(wanted.size))
    assert np.linalg.norm(value - wanted) <= bound * np.linalg.norm(wanted)


@pytest.mark.parametrize("name", ["dctn", "idctn", "dstn", "idstn"])
@pytest.mark.parametrize("kind", [1, 2, 3, 4])
@pytest.mark.parametrize("chunks", [(-1, -1), (5, 4), (-1, 4)])
@pytest.mark.parametrize("ranks", [None, 3])
def test_cupy_in_cupy_out(name: str, kind: int, chunks: Any, ranks: int | None) -> None:
    import cupy

    a = numbers((12, 10), "float32")
    y = getattr(dgpu.fft, name)(on_device(a, chunks), kind)
    assert isinstance(y._meta, cupy.ndarray)
    value = computed(y, ranks)
    assert y.dtype == value.dtype == np.float32
    close(value, getattr(scipy.fft, name)(a.astype(float), kind))


def computed(y: da.Array, ranks: int | None) -> Any:
    if ranks is None:
        return y.compute(scheduler="synchronous")
    with dgpu.enable(local_ranks=ranks, on_error="raise", when="always"):
        return y.compute(scheduler="threads")


@pytest.mark.parametrize("boundary", [*BOUNDARIES, ("periodic", "zero", "reflect")])
@pytest.mark.parametrize("dtype", ["int16", "float16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("ranks", [None, 3])
def test_poisson(boundary: Any, dtype: str, ranks: int | None) -> None:
    solve(boundary, dtype, ranks)


def solve(boundary: Any, dtype: str, ranks: int | None) -> None:
    import cupy

    f = numbers((12, 9, 7), dtype)
    u = dgpu.poisson(on_device(f, (4, 9, 4)), 0.5, boundary)
    assert isinstance(u._meta, cupy.ndarray)
    value = computed(u, ranks)
    assert isinstance(value, cupy.ndarray)
    assert value.dtype == u.dtype
    value = cupy.asnumpy(value)
    boundaries = (boundary,) * 3 if isinstance(boundary, str) else boundary
    wanted = f.astype(np.result_type(dtype, np.float64))
    if "zero" not in boundaries:
        wanted = wanted - wanted.mean()
    norm = 48 * np.linalg.norm(value) + np.linalg.norm(wanted)
    residual = np.linalg.norm(operator(value, (0.5,) * 3, boundaries) - wanted)
    assert residual <= 64 * np.finfo(value.dtype).eps * norm
