"""Least squares and generalized minimal residuals, compared with SciPy's."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client
from scipy.sparse import linalg

import dask_dgpu as dgpu

pytestmark = pytest.mark.cluster

SLOW = pytest.mark.slow
DTYPES = "float32", "float64", "complex64", "complex128"
CASES = [
    pytest.param(shape, dtype, marks=() if (shape, dtype) == ((37, 37), "float32") else SLOW)
    for shape in ((1, 1), (37, 37), (53, 31), (31, 53))
    for dtype in DTYPES
]


def problem(shape: tuple[int, int], dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a matrix, a right side and a guess."""
    rng = np.random.default_rng(shape[0])

    def numbers(*shape: int) -> np.ndarray:
        found = rng.random(shape)
        return (found + 1j * rng.random(shape) if dtype[0] == "c" else found).astype(dtype)

    a = numbers(*shape) + (8 * np.eye(*shape)).astype(dtype)
    return a, numbers(shape[0]), numbers(shape[1])


def size(x: Any) -> float:
    return float(np.linalg.norm(x))


@pytest.mark.parametrize(("shape", "dtype"), [each for each in CASES if each.values[0] != (53, 31)])
def test_gmres(client: Client, shape: tuple[int, int], dtype: str) -> None:
    n = shape[0]
    a, b, guess = problem((n, n), dtype)
    m = np.diag(1 / np.diag(a))
    x, y = da.from_array(a, chunks=(31, 47)), da.from_array(b, chunks=53)
    cases: list[tuple[Any, Any]] = [
        ({}, {}),
        ({"x0": guess, "restart": 4}, {"x0": guess, "restart": 4}),
        ({"M": m, "atol": 1e-2}, {"M": da.from_array(m, chunks=90), "atol": 1e-2}),
    ]
    for own, given in cases:
        expected, info = linalg.gmres(a, b, **own)
        found, ours = dgpu.gmres(x, y, **given)
        assert (ours, info, found.dtype) == (0, 0, np.dtype(dtype))
        value = found.compute()
        limit = max(1e-5 * size(b), own.get("atol", 0.0))
        assert size(a @ value - b) <= limit * (1 + 64 * np.finfo(dtype).eps)
        np.testing.assert_allclose(value, expected, atol=limit)


def test_gmres_of_functions(client: Client) -> None:
    """Convection and diffusion on a grid, with a cycle that ends early, and one cycle too few."""
    b = np.random.default_rng(0).random((20, 15))
    seen: list[Any] = []

    @dgpu.jit
    def flow(u: Any) -> Any:
        return 5 * u - dgpu.stencil(u, [[0, 0.5, 0], [0.9, 0, 0.1], [0, 0.5, 0]])

    y = da.from_array(b, chunks=7)
    x, info = dgpu.gmres(flow, y, rtol=1e-12, restart=7, callback=seen.append)
    assert info == 0
    assert len(seen) > 1
    np.testing.assert_array_equal(seen[-1].compute(), x.compute())
    np.testing.assert_allclose(flow(x).compute(), b, atol=1e-10)
    x, info = dgpu.gmres(flow, y, rtol=1e-12, restart=7, maxiter=1)
    assert info == 1
    np.testing.assert_allclose(x.compute(), seen[0].compute())


def test_gmres_that_cannot_converge(client: Client) -> None:
    b = da.ones(6, chunks=2)
    shift = da.from_array(np.roll(np.eye(6), 1, axis=0), chunks=2)
    x, info = dgpu.gmres(shift, da.from_array(np.eye(6)[0], chunks=2), restart=3, maxiter=9)
    assert info == 9  # as no cycle makes the residual smaller
    np.testing.assert_array_equal(x.compute(), np.zeros(6))
    singular = da.from_array(np.diag([1.0, 2, 3, 4, 5, 0]), chunks=2)
    x, info = dgpu.gmres(singular, b, maxiter=5)
    assert info == 5
    np.testing.assert_allclose(x.compute(), [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5, 0], atol=1e-9)
    x, info = dgpu.gmres(da.full((6, 6), np.nan, chunks=2), b, maxiter=5)
    assert info == 5


@pytest.mark.parametrize(("shape", "dtype"), CASES)
def test_lsqr(client: Client, shape: tuple[int, int], dtype: str) -> None:
    a, b, guess = problem(shape, dtype)
    x, y = da.from_array(a, chunks=(31, 47)), da.from_array(b, chunks=53)
    cases: list[Any] = [
        {},
        {"damp": 0.5, "x0": guess, "calc_var": dtype[0] == "f"},
        {"iter_lim": 2, "atol": 1e-9, "btol": 1e-9},
    ]
    for own in cases:
        expected, istop, itn, *numbers, var = linalg.lsqr(a, b, **own)
        found, *ours, our_var = dgpu.lsqr(x, y, **own)
        assert found.dtype == dtype
        assert ours[0] == istop
        assert abs(ours[1] - itn) <= 3
        np.testing.assert_allclose(found.compute(), expected, rtol=1e-3, atol=1e-4)
        if ours[1] == itn:
            np.testing.assert_allclose(ours[2:], numbers, rtol=0.02, atol=1e-3)
            np.testing.assert_allclose(our_var.compute(), var, rtol=0.02, atol=1e-6)


def test_lsqr_of_functions(client: Client) -> None:
    """Differences along an axis, whose adjoint is known."""
    b = np.random.default_rng(0).random((13, 8))
    forward = dgpu.jit(lambda x: da.concatenate([x[1:], x[:1]]).rechunk(x.chunks) - 3 * x)
    back = dgpu.jit(lambda y: da.concatenate([y[-1:], y[:-1]]).rechunk(y.chunks) - 3 * y)
    for scale in (1, 2):
        x, istop, *_ = dgpu.lsqr((forward, back), da.from_array(b * scale, chunks=5), btol=1e-12)
        assert istop == 1
        value = x.compute()
        np.testing.assert_allclose(np.roll(value, -1, axis=0) - 3 * value, b * scale, atol=1e-5)


def test_zero(client: Client) -> None:
    a, b = da.eye(5, chunks=2), da.zeros(5, chunks=2)
    for x0 in (None, np.ones(5)):
        x, info = dgpu.gmres(a, b, x0)
        assert info == 0
        np.testing.assert_array_equal(x.compute(), np.zeros(5))
    x, *numbers, var = dgpu.lsqr(a, b)
    assert numbers == [0] * 8
    np.testing.assert_array_equal([*x.compute(), *var.compute()], np.zeros(10))
    x, istop, *_ = dgpu.lsqr(a, b, x0=np.ones(5))
    assert istop == 1
    np.testing.assert_allclose(x.compute(), np.zeros(5), atol=1e-12)


def test_without_a_cluster() -> None:
    a, b, _ = problem((5, 5), "float64")
    x, y = da.from_array(a, chunks=3), da.from_array(b, chunks=3)
    with dask.config.set(array_optimize=None, scheduler="synchronous"):
        for found in (dgpu.gmres(x, y)[0], dgpu.lsqr(x, y)[0]):
            np.testing.assert_allclose(a @ found.compute(), b, atol=1e-4)


def test_arguments() -> None:
    a, b = da.eye(5, chunks=2), da.ones(5, chunks=2)
    with pytest.raises(TypeError, match="expected A to be a Dask array or callable, got 3"):
        dgpu.gmres(3, b)
    with pytest.raises(ValueError, match=r"expected A to be a square matrix for b of shape \(5,\)"):
        dgpu.gmres(a[:3], b)
    with pytest.raises(ValueError, match="expected restart to be an integer of at least 1, got 0"):
        dgpu.gmres(a, b, restart=0)
    with pytest.raises(ValueError, match="expected maxiter to be an integer of at least 1, got 0"):
        dgpu.gmres(a, b, maxiter=0)
    for wrong in (3, (len,), (len, 3)):
        with pytest.raises(TypeError, match="expected A to be a Dask array or a pair of callables"):
            dgpu.lsqr(wrong, b)
    with pytest.raises(ValueError, match=r"expected A to be a matrix for b of shape \(5,\)"):
        dgpu.lsqr(a[:3], b)
    with pytest.raises(ValueError, match=r"expected x0 to be of shape \(3,\)"):
        dgpu.lsqr(a[:, :3], b, x0=b)
    with pytest.raises(ValueError, match="expected iter_lim to be an integer of at least 0"):
        dgpu.lsqr(a, b, iter_lim=-1)
    with pytest.raises(TypeError, match="expected calc_var to be True or False"):
        dgpu.lsqr(a, b, calc_var="no")  # type: ignore[arg-type]
