"""Cosine and sine transforms and Poisson's equation on CuPy blocks: CuPy in, CuPy out."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.fft

import dask_dgpu as dgpu
from dask_dgpu.algorithms.pencil_fft import TRIGONOMETRIC, Transform
from dask_dgpu.array.fft import long_axis
from dask_dgpu.kernels.fft import factors, transform, trigonometric
from tests.array.poisson.test_poisson import BOUNDARIES
from tests.array.poisson.test_poisson import laplacian as operator

pytestmark = pytest.mark.gpu

DTYPES = ["bool", "int16", "float16", "float32", "float64", "complex64", "complex128"]


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


@pytest.mark.parametrize("kind", TRIGONOMETRIC)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("workspace", [1000, trigonometric.WORKSPACE])
def test_kernel(
    kind: str, dtype: str, norm: str, workspace: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import cupy

    monkeypatch.setattr(trigonometric, "WORKSPACE", workspace)
    for shape, axis, n in [((17,), 0, 17), ((6, 16, 3), 1, 16), ((9, 5), 1, 8), ((3, 12), 1, 7)]:
        a = numbers(shape, dtype)
        block = cupy.asarray(a)
        result = transform(block, [Transform(kind, axis, n, norm)])
        wide = a.astype(np.result_type(a.dtype, np.float64))
        wanted = getattr(scipy.fft, kind[:-1])(wide, int(kind[-1]), n, axis, norm)
        assert result.dtype == transform(a, [Transform(kind, axis, n, norm)]).dtype
        close(result, wanted)
        assert bool((block == cupy.asarray(a)).all())
    turned = cupy.asarray(numbers((8, 6), dtype)).T  # strides of any order
    wanted = transform(cupy.asnumpy(turned).astype("c16"), [Transform(kind, 0, 6, norm)])
    close(transform(turned, [Transform(kind, 0, 6, norm)]), wanted)


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


@pytest.mark.parametrize("kind", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["dct", "dst"])
@pytest.mark.parametrize("n", [3600, 3607])
def test_a_long_axis(name: str, kind: int, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_axis, "SMALL", 0)
    for dtype in ("float32", "complex128"):
        a = numbers((2, n), dtype)
        y = getattr(dgpu.fft, name)(on_device(a, (2, 500)), kind)
        assert y.numblocks[1] > 1
        wanted = getattr(scipy.fft, name)(a.astype(np.result_type(dtype, np.float64)), kind)
        close(computed(y, 3), wanted)


@pytest.mark.parametrize("boundary", [*BOUNDARIES, ("periodic", "zero", "reflect")])
@pytest.mark.parametrize("dtype", ["int16", "float16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("ranks", [None, 3])
@pytest.mark.parametrize("group", [50, factors.GROUP])
def test_poisson(
    boundary: Any, dtype: str, ranks: int | None, group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import cupy

    monkeypatch.setattr(factors, "GROUP", group)
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
