"""Conjugate gradients, compared with SciPy's."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from scipy.sparse import linalg

import dask_dgpu as dgpu

pytestmark = pytest.mark.cluster


def problem(n: int, dtype: str = "float64") -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    a = rng.random((n, n))
    b = rng.random(n)
    if dtype[0] == "c":
        a, b = a + 1j * rng.random((n, n)), b + 1j * rng.random(n)
    return (a @ a.conj().T + n * np.diag(1 + np.arange(n))).astype(dtype), b.astype(dtype)


SLOW = pytest.mark.slow
DTYPES = "float32", "float64", "complex128"


@pytest.mark.parametrize(
    ("n", "dtype"),
    [
        (37, "complex128"),
        *(pytest.param(n, dtype, marks=SLOW) for n in (1, 211) for dtype in DTYPES),
        *(pytest.param(37, dtype, marks=SLOW) for dtype in DTYPES[:2]),
    ],
)
def test_as_scipy(client: Client, n: int, dtype: str) -> None:
    a, b = problem(n, dtype)
    m = np.diag(1 / np.diag(a))
    x, y = da.from_array(a, chunks=(31, 47)), da.from_array(b, chunks=53)
    guess = b / n
    for own, given in (
        ({}, {}),
        ({"x0": guess}, {"x0": guess}),
        ({"M": m, "rtol": 1e-3}, {"M": da.from_array(m, chunks=90), "rtol": 1e-3}),
        ({"maxiter": 3}, {"maxiter": 3}),
        ({"maxiter": 0}, {"maxiter": 0}),
    ):
        expected, info = linalg.cg(a, b, **own)
        found, ours = dgpu.cg(x, y, **given)
        assert (ours, found.dtype) == (info, np.dtype(dtype))
        np.testing.assert_allclose(found.compute(), expected, rtol=1e-4, atol=1e-7)


def test_functions(client: Client) -> None:
    """On a grid, by a stencil; a function from ``jit`` is called for one program only."""
    b = np.random.default_rng(0).random((40, 30))
    called = []

    @dgpu.jit
    def laplacian(u: Any) -> Any:
        called.append(u)
        return -dgpu.stencil(u)

    for scale in (1, 2):
        x, info = dgpu.cg(laplacian, da.from_array(b * scale, chunks=13), rtol=1e-10)
        assert info == 0
        found = -dgpu.stencil(x).compute()
        np.testing.assert_allclose(found, b * scale, atol=1e-7)
        if scale == 1:
            before = len(called)
    assert len(called) == before + 1  # to learn the dtype


def test_callback(client: Client) -> None:
    a, b = problem(37)
    seen: list[Any] = []
    own: list[Any] = []
    x, y = da.from_array(a, chunks=10), da.from_array(b, chunks=10)
    _, info = dgpu.cg(x, y, callback=seen.append)
    linalg.cg(a, b, callback=lambda x: own.append(x.copy()))
    assert info == 0
    assert len(seen) == len(own)
    for each, value in zip(seen, own, strict=True):
        np.testing.assert_allclose(each.compute(), value, rtol=1e-6)


def test_zero(client: Client) -> None:
    x, info = dgpu.cg(da.eye(5, chunks=2), da.zeros(5, chunks=2), np.ones(5))
    assert info == 0
    np.testing.assert_array_equal(x.compute(), np.zeros(5))


def test_arrays_that_change(client: Client) -> None:
    a = (da.eye(5, chunks=2) * 2).persist()
    b = da.ones(5, chunks=2)
    assert float(dgpu.cg(a, b)[0].sum()) == 2.5
    a[:] = np.eye(5) * 4
    assert float(dgpu.cg(a, b)[0].sum()) == 1.25


def test_arguments() -> None:
    a, b = da.eye(5, chunks=2), da.ones(5, chunks=2)
    with pytest.raises(TypeError, match="expected A to be a Dask array or callable, got 3"):
        dgpu.cg(3, b)
    with pytest.raises(ValueError, match=r"expected M to be a square matrix for b of shape \(5,\)"):
        dgpu.cg(a, b, M=a[:3])
    with pytest.raises(ValueError, match=r"expected x0 to be of shape \(5,\)"):
        dgpu.cg(a, b, b[:3])
    with pytest.raises(ValueError, match="expected maxiter to be an integer of at least 0"):
        dgpu.cg(a, b, maxiter=-1)
