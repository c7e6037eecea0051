"""Ghost cells, stencils and Jacobi's iteration of CuPy blocks: CuPy in, CuPy out."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu
from tests.array.stencil.test_stencil import numbers, reference

pytestmark = pytest.mark.gpu

BOUNDARIES = ["zero", "periodic", "reflect", "mirror", "nearest", 1.5]
RANKS = [None, 1, 3]
HEAT = np.pad([[1.0]], 1) + dgpu.LAPLACIAN_9PT / 8
"""Its results do not fade away."""


def on_device(values: Any, chunks: Any) -> da.Array:
    import cupy

    return da.from_array(cupy.asarray(values), chunks=chunks, asarray=False)


def computed(array: da.Array, ranks: int | None) -> Any:
    import cupy

    if ranks is None:
        value = array.compute(scheduler="synchronous")
    else:
        with dgpu.enable(local_ranks=ranks, on_error="raise", when="always"):
            assert dgpu.explain(array).rewritten
            value = array.compute(scheduler="threads")
    assert isinstance(array._meta, cupy.ndarray)
    assert isinstance(value, cupy.ndarray)
    assert value.dtype == array.dtype
    return cupy.asnumpy(value)


def test_other_threads_may_wait_for_the_device() -> None:
    """Theirs may fail while launches are recorded; a program goes on without the recording."""
    import cupy

    over = threading.Event()

    def wait() -> None:
        while not over.is_set():
            with suppress(cupy.cuda.runtime.CUDARuntimeError):
                cupy.cuda.Device().synchronize()

    a = numbers((70, 190), "float64")
    y = dgpu.stencil(on_device(a, (40, 60)), HEAT, boundary="periodic", iterations=100)
    wanted = reference(a, HEAT, "periodic", 100)
    other = threading.Thread(target=wait)
    other.start()
    try:
        for _ in range(20):
            np.testing.assert_allclose(computed(y, 3), wanted, atol=1e-12)
    finally:
        over.set()
        other.join()


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("name", ["LAPLACIAN_5PT", "LAPLACIAN_9PT"])
@pytest.mark.parametrize("iterations", [1, 6, 25])
def test_laplacians(ranks: int | None, boundary: Any, name: str, iterations: int) -> None:
    a, kernel = numbers((70, 190), "float64"), 0.1 * getattr(dgpu, name)
    y = dgpu.stencil(on_device(a, (40, 60)), kernel, boundary=boundary, iterations=iterations)
    value = computed(y, ranks)
    np.testing.assert_allclose(value, reference(a, kernel, boundary, iterations), atol=1e-12)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("shape", [(500,), (40, 30), (12, 14, 16), (6, 7, 8, 9)])
@pytest.mark.parametrize("dtype", ["int16", "float16", "float32", "complex64", "complex128"])
def test_any_axes_and_dtypes(ranks: int | None, shape: tuple[int, ...], dtype: str) -> None:
    a = numbers(shape, dtype)
    kernel = numbers((5, *(3,) * (len(shape) - 1)), "float64")
    kernel /= np.abs(kernel).sum()
    y = dgpu.stencil(on_device(a, 5), kernel, boundary="reflect", iterations=3)
    wanted = reference(a, kernel, "reflect", 3)
    eps = float(np.finfo(y.dtype).eps)
    np.testing.assert_allclose(
        computed(y, ranks).astype(wanted.dtype), wanted, rtol=0, atol=100 * eps
    )


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("boundary", ["zero", "reflect", 2.0])
@pytest.mark.parametrize("shape", [(300,), (40, 30), (12, 14, 16)])
def test_jacobi(ranks: int | None, boundary: Any, shape: tuple[int, ...]) -> None:
    import cupy

    a = numbers(shape, "float64")
    a -= a.mean()  # so that mirrored grids have a solution
    most = {"boundary": boundary, "max_iterations": 400, "tol": 1e-3}
    with dask.config.set(scheduler="synchronous"):
        x = da.from_array(a, chunks=12)
        v, known = dgpu.jacobi(x * 0, x, **most)
        y = on_device(a, 12)
        if ranks is None:
            u, info = dgpu.jacobi(y * 0, y, **most)
        else:
            with dgpu.enable(local_ranks=ranks, on_error="raise", when="always"):
                u, info = dgpu.jacobi(y * 0, y, **most)
        value = u.compute()
        assert isinstance(value, cupy.ndarray)
        assert info.converged == known.converged
        laplacian = dgpu.stencil(
            da.from_array(cupy.asnumpy(value)), _cross(a.ndim), boundary=boundary
        )
        of_zero = dgpu.stencil(x * 0, _cross(a.ndim), boundary=boundary)
        residual = np.linalg.norm(laplacian.compute() - a) / np.linalg.norm(of_zero.compute() - a)
    assert info.residuals[-1] == pytest.approx(residual, rel=1e-4)
    if not info.converged:  # else they may have stopped at different sweeps
        np.testing.assert_allclose(cupy.asnumpy(value), v.compute(), atol=1e-9)


def _cross(ndim: int) -> Any:
    """The Laplacian of 2 ndim + 1 points."""
    weights = np.zeros((3,) * ndim)
    middle = (1,) * ndim
    for axis in range(ndim):
        for step in (0, 2):
            weights[(*middle[:axis], step, *middle[axis + 1 :])] = 1
    weights[middle] = -2 * ndim
    return weights
