"""Arrays with blocks of no elements: every public function, as plain Dask and as a gang."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.fft

import dask_dgpu as dgpu

A = np.random.default_rng(12).random((6, 8))
CHUNKS: list[Any] = [
    ((0, 6), (2, 0, 6, 0)),
    pytest.param(((3, 0, 3), (8,)), marks=pytest.mark.slow),
]
REDUCTIONS = ["sum", "mean", "var", "std"]
LAPLACIAN = dgpu.LAPLACIAN_5PT


@pytest.fixture(params=["numpy", pytest.param("cupy", marks=pytest.mark.gpu)])
def make(request: pytest.FixtureRequest) -> Callable[..., da.Array]:
    """What makes Dask arrays, with blocks of NumPy or CuPy."""
    on_device = request.param == "cupy"

    def array(values: Any, chunks: Any) -> da.Array:
        if on_device:
            import cupy

            values = cupy.asarray(values)
        return da.from_array(values, chunks=chunks, asarray=False)

    return array


@pytest.fixture(params=["dask", "gang"])
def enabled(request: pytest.FixtureRequest) -> Iterator[None]:
    """Plain Dask, or a gang of three ranks for all that can be one."""
    gang = request.param == "gang"
    with dgpu.enable(local_ranks=3, on_error="raise", when="always") if gang else nullcontext():
        yield


def close(z: da.Array, wanted: Any) -> None:
    value = z.compute(scheduler="sync")
    assert type(value) is type(z._meta) or z.ndim == 0
    value = value.get() if hasattr(value, "get") else value
    assert value.shape == z.shape == np.shape(wanted)
    np.testing.assert_allclose(value, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("method", ["compensated", "reproducible", "dask"])
@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_reductions(make: Callable[..., da.Array], chunks: Any, dtype: str, method: Any) -> None:
    a = np.round(A * 16).astype(dtype)
    x = make(a, chunks)
    for axis in (None, 0, 1):
        close(dgpu.sum(x, axis, method=method), a.sum(axis))
        double = np.result_type(dtype, np.float64)
        for name in REDUCTIONS:
            if name in ("var", "std") and method == "dask":
                continue  # Dask's own warns of blocks without elements
            wanted = getattr(a.astype(double), name)(axis)
            close(getattr(dgpu, name)(x, axis, dtype=double, method=method), wanted)
        wanted = np.sqrt((abs(a.astype(double)) ** 2).sum(axis))
        norm = dgpu.norm(x.astype(double), axis, method=method)
        close(norm, wanted)
    close(dgpu.dot(x[:, 1], x[:, 2], method=method), a[:, 1] @ a[:, 2])


@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
def test_extremes(make: Callable[..., da.Array], chunks: Any, name: str) -> None:
    for axis in (None, 0, 1):
        for keepdims in (False, True):
            wanted = getattr(np, name)(A, axis=axis, keepdims=keepdims)
            close(getattr(dgpu, name)(make(A, chunks), axis, keepdims), wanted)
    nothing = make(np.zeros((0, 4)), ((0, 0), (2, 2)))
    close(getattr(dgpu, name)(nothing, 1), np.zeros(0))
    close(getattr(dgpu, name)(nothing, 1, keepdims=True), np.zeros((0, 1)))


@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
@pytest.mark.usefixtures("enabled")
def test_transforms(make: Callable[..., da.Array], chunks: Any) -> None:
    x = make(A, chunks)
    for name in ("fft2", "rfft2"):
        close(getattr(dgpu.fft, name)(x), getattr(np.fft, name)(A))
    for name in ("fft", "rfft", "dct", "dst", "idct"):
        for axis in (0, 1):
            close(getattr(dgpu.fft, name)(x, axis=axis), getattr(scipy.fft, name)(A, axis=axis))


@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
@pytest.mark.usefixtures("enabled")
def test_grids(make: Callable[..., da.Array], chunks: Any) -> None:
    x, whole = make(A, chunks), da.from_array(A, chunks=-1)
    for boundary in ("periodic", "zero", "reflect"):
        wanted = dgpu.poisson(whole, boundary=boundary).compute(scheduler="sync")
        close(dgpu.poisson(x, boundary=boundary), wanted)
    for edge in ("periodic", "reflect", "mirror", "nearest", 0.0):
        wanted = dgpu.stencil(whole, LAPLACIAN, boundary=edge).compute(scheduler="sync")
        close(dgpu.stencil(x, LAPLACIAN, boundary=edge), wanted)
    iterate, _ = dgpu.jacobi(x * 0, x, max_iterations=7)
    wanted, _ = dgpu.jacobi(whole * 0, whole, max_iterations=7)
    close(iterate, wanted.compute(scheduler="sync"))


@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
@pytest.mark.usefixtures("enabled")
def test_what_dask_has_too(make: Callable[..., da.Array], chunks: Any) -> None:
    x = make(A, chunks)
    close(x.rechunk((2, 3)) + 0, A)
    close(x @ x.T, A @ A.T)
    close(x.map_overlap(lambda block: block * 2, depth=1, boundary="none"), A * 2)
    close(dgpu.sum(x @ x.T, 0), (A @ A.T).sum(0))


@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("persisted", [False, True])
def test_in_another_shape_than_dask_declares(name: str, persisted: bool) -> None:
    a, b = A[:4, None, :4] + np.ones((1, 2, 1)), A[:4]
    x = da.from_array(a, chunks=((4,), (2,), (3, 1, 0)))
    least = getattr(x, name)(axis=1)
    assert least.blocks[0, 2].compute(scheduler="sync").shape != (4, 0)
    if persisted:
        least = least.persist(scheduler="sync")
    with dgpu.enable(local_ranks=3, on_error="raise", when="always"):
        close(least @ da.from_array(b, chunks=((3, 1, 0), (5, 3))), getattr(a, name)(1) @ b)


SELECTED: list[Any] = [((5, 2), (0, 1)), ((7,), (1, 0)), ((3, 4), (0, 1, 0)), ((2, 5), (0, 0, 1))]
OF_COLUMN: dict[str, Callable[[Any, Any], Any]] = {
    "elementwise": lambda xp, x: xp.exp(x * 2 + 1),
    "diff": lambda xp, x: xp.diff(x * 1.0, axis=0),
    "slices": lambda xp, x: (x * 2)[1:] - x[:-1],
    "transpose": lambda xp, x: (x * 2).T,
    "product": lambda xp, x: (x * 2).T @ (x * 3),
    "sum": lambda xp, x: (x * 2).sum(axis=1),
    "where": lambda xp, x: xp.where(x > 3, x, 0)[1:],
    "concatenation": lambda xp, x: xp.concatenate([x * 2, x * 3], axis=1),
    "running sum": lambda xp, x: xp.cumsum(x * 2, axis=0),
}


@pytest.mark.parametrize("settings", [{}, {"when": "always"}, {"when": "always", "fuse": False}])
@pytest.mark.parametrize("case", OF_COLUMN)
def test_length_one_beside_empty_blocks(case: str, settings: Any) -> None:
    """Plain Dask joins such blocks, declares several, and returns one of them twice or fails."""
    column, compute = np.arange(7.0)[:, None] ** 2, OF_COLUMN[case]
    with dgpu.enable(local_ranks=3, on_error="raise", **settings):
        for chunks in SELECTED:
            close(compute(da, da.from_array(column, chunks=chunks)), compute(np, column))


def test_broadcasting_with_empty_blocks() -> None:
    row, column = np.arange(4.0)[None], np.arange(7.0)[:, None]
    x, y = da.from_array(row, chunks=((0, 1), (3, 1))), da.from_array(column, chunks=(5, (1, 0)))
    with dgpu.enable(on_error="raise"):
        close(x + da.ones((1, 1), chunks=1), row + 1)
        close(da.einsum("ij,kj->ik", y, y * 2), column @ (column * 2).T)
        assert (x * 2.0).chunks[0] == (1,)
        assert (x + x).chunks[0] == (0, 1)
        assert da.map_blocks(np.negative, x).chunks == x.chunks
