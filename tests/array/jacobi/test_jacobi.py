"""``dgpu.jacobi``: solutions, what it says of them, and what it refuses."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu
from tests.array.stencil.test_stencil import numbers
from tests.support.reference.elimination import direct

Array = Any
RHS = numbers((13, 11), "float64")


def residual(u: Array, rhs: Array, boundary: Any, dx: float) -> float:
    """The relative residual, by another way."""
    laplacian = dgpu.stencil(da.from_array(u, chunks=-1), boundary=boundary).compute() / dx**2
    of_zero = dgpu.stencil(da.zeros(u.shape, chunks=-1), boundary=boundary).compute() / dx**2
    return float(np.linalg.norm(laplacian - rhs) / np.linalg.norm(of_zero - rhs))


@pytest.mark.parametrize("edge", ["zero", 2.0])
@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param((4, 5), marks=pytest.mark.slow),
        (13, 11),
        pytest.param((1, 11), marks=pytest.mark.slow),
    ],
)
def test_solves(edge: Any, chunks: Any, gangs: list[str], enabled: Any) -> None:
    rhs, dx = da.from_array(RHS, chunks=chunks), 0.5
    u, info = dgpu.jacobi(
        da.zeros_like(rhs), rhs, dx=dx, boundary=edge, max_iterations=20_000, tol=1e-8
    )
    assert len(gangs) == (0 if enabled is None else 1)
    assert info.converged
    assert info.reason == "converged"
    assert (u.chunks, u.dtype) == (rhs.chunks, rhs.dtype)
    value = u.compute()
    wanted = direct(RHS, dx, 0.0 if edge == "zero" else edge)
    np.testing.assert_allclose(value, wanted, atol=1e-6 * np.abs(wanted).max())
    assert info.residuals[-1] <= 1e-8
    assert info.residuals[-1] == pytest.approx(residual(value, RHS, edge, dx), rel=1e-4)
    assert info.checked[0] == 0
    assert info.checked[-1] == info.iterations < 20_000
    assert len(info.checked) == len(info.residuals)
    assert np.all(np.diff(info.residuals) <= 1e-14)


def test_empty_chunks() -> None:
    rhs = da.from_array(RHS, chunks=((0, 6, 7), (0, 4, 0, 7)))
    for iterations in (0, 5):
        u, info = dgpu.jacobi(rhs, rhs, max_iterations=iterations)
        wanted, _ = dgpu.jacobi(RHS, RHS, max_iterations=iterations)
        assert u.chunks == ((6, 7), (4, 7))
        assert info.iterations == iterations
        np.testing.assert_allclose(u.compute(), wanted.compute(), rtol=1e-12, atol=1e-12)


def test_it_says_when_it_has_not_converged() -> None:
    rhs = da.from_array(RHS, chunks=5)
    u, info = dgpu.jacobi(da.zeros_like(rhs), rhs, max_iterations=30)
    assert (info.converged, info.reason, info.iterations) == (False, "max_iterations", 30)
    assert info.residuals[-1] == pytest.approx(residual(u.compute(), RHS, "zero", 1.0), rel=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_reported(bad: float) -> None:
    a = RHS.copy()
    a[3, 4] = bad
    with np.errstate(all="ignore"):
        _, info = dgpu.jacobi(da.zeros((13, 11), chunks=5), da.from_array(a, chunks=5))
    assert (info.converged, info.reason, info.iterations) == (False, "not finite", 0)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("scale", [1e-30, 1e25])
def test_squares_that_single_precision_cannot_hold(dtype: str, scale: float) -> None:
    a = scale * numbers((9, 10), dtype)
    u, info = dgpu.jacobi(np.zeros_like(a), da.from_array(a, chunks=5), tol=1e-4)
    assert (info.reason, info.residuals[0]) == ("converged", pytest.approx(1))
    wanted = direct(a.astype("complex128") / scale, 1.0, 0.0)
    np.testing.assert_allclose(u.compute() / scale, wanted, atol=1e-2 * np.abs(wanted).max())


def test_no_iterations() -> None:
    rhs = da.from_array(RHS, chunks=5)
    u, info = dgpu.jacobi(rhs, rhs, max_iterations=0)
    np.testing.assert_array_equal(u.compute(), RHS)
    assert (info.iterations, info.converged) == (0, False)
    u, info = dgpu.jacobi(da.zeros_like(rhs), da.zeros_like(rhs), max_iterations=0)
    assert (info.converged, info.residuals) == (True, (0.0,))


@pytest.mark.slow
@pytest.mark.parametrize("boundary", ["periodic", "reflect", "mirror", "nearest", ("zero", 1)])
@pytest.mark.parametrize(
    "dtype",
    [
        "int16",
        "float16",
        "complex64",
        "float32",
        "complex128",
    ],
)
def test_the_same_with_a_gang_and_without(boundary: Any, dtype: str, gangs: list[str]) -> None:
    a, b = numbers((9, 10), dtype, 1), numbers((9, 10), dtype, 2)
    x, y = da.from_array(a, chunks=(4, 10)), da.from_array(b, chunks=(2, 5))
    u, info = dgpu.jacobi(x, y, boundary=boundary, max_iterations=25, tol=1e-12)
    with dask.config.set(array_optimize=None):
        v, plain = dgpu.jacobi(x, y, boundary=boundary, max_iterations=25, tol=1e-12)
    assert u.dtype == v.dtype == np.result_type(a.dtype if a.dtype.kind != "i" else float, "f4")
    assert u.chunks == v.chunks == x.chunks
    eps = float(np.finfo(u.dtype).eps)
    np.testing.assert_allclose(u.compute(), v.compute(), rtol=0, atol=300 * eps)
    assert info.iterations == plain.iterations == 25
    assert info.residuals[-1] == pytest.approx(plain.residuals[-1], rel=1e-3)


@pytest.mark.slow
def test_one_axis_and_three() -> None:
    for shape in [(17,), (5, 4, 6)]:
        a = numbers(shape, "float64")
        rhs = da.from_array(a, chunks=3)
        u, info = dgpu.jacobi(da.zeros_like(rhs), rhs, tol=1e-9, max_iterations=10_000)
        assert info.converged
        np.testing.assert_allclose(u.compute(), direct(a, 1.0, 0.0), atol=1e-6)


def test_the_first_iterate_counts() -> None:
    rhs = da.from_array(RHS, chunks=5)
    wanted = da.from_array(direct(RHS, 1.0, 0.0), chunks=5)
    u, info = dgpu.jacobi(wanted, rhs)
    assert (info.iterations, info.converged) == (0, True)
    np.testing.assert_array_equal(u.compute(), wanted.compute())


def test_from_numpy() -> None:
    u, info = dgpu.jacobi(np.zeros(5), np.ones(5), max_iterations=500, tol=1e-10)
    assert info.converged
    np.testing.assert_allclose(u.compute(), direct(np.ones(5), 1.0, 0.0), atol=1e-8)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"dx": 0}, ValueError, "expected dx to be a positive and finite number, got 0"),
        ({"dx": np.inf}, ValueError, "expected dx to be a positive and finite number, got inf"),
        ({"dx": 1e-200}, ValueError, r"expected dx\*\*2 / 4 to be a normal .* got dx = 1e-200"),
        ({"dx": 1e200}, ValueError, r"expected dx\*\*2 / 4 to be a normal .* got dx = 1e\+200"),
        ({"dx": "a"}, TypeError, "expected dx to be a positive and finite number, got 'a'"),
        ({"tol": -1e-3}, ValueError, "expected tol to be a positive and finite number, got -0.001"),
        ({"tol": np.nan}, ValueError, "expected tol to be a positive and finite number, got nan"),
        ({"boundary": "wrap"}, ValueError, "unknown boundary 'wrap', expected one of zero, per"),
        ({"boundary": 2j}, ValueError, "boundary to be real for an array of float64, got 2j"),
        (
            {"max_iterations": -1},
            ValueError,
            "an integer of at least ., got -1",
        ),
        (
            {"max_iterations": 1.5},
            TypeError,
            "an integer of at least ., got 1.5",
        ),
        ({"rhs": np.ones((6, 8))}, ValueError, r"u0 and rhs of the same shape, got \(6, 7\) and"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], error: Any, message: str) -> None:
    given = {"rhs": da.ones((6, 7), chunks=3), **arguments}
    with pytest.raises(error, match=message):
        dgpu.jacobi(da.ones((6, 7), chunks=3), **given)


def test_bad_arrays() -> None:
    x = da.ones(6, chunks=3)
    with pytest.raises(ValueError, match="u0 with known chunk sizes, got unknown"):
        dgpu.jacobi(x[x > 0], x)
    with pytest.raises(ValueError, match="expected rhs with at least 1 axis, got 0"):
        dgpu.jacobi(x, x.sum())
    with pytest.raises(ValueError, match=r"expected u0 with elements, got the shape \(0, 6\)"):
        dgpu.jacobi(da.ones((0, 6)), da.ones((0, 6)))
    with pytest.raises(TypeError, match=r"expected rhs to be of .*, got object"):
        dgpu.jacobi(x, x.astype(object))
    with pytest.raises(ValueError, match=r"dx\*\*2 / 2 to be a normal .* of float32"):
        dgpu.jacobi(x.astype("f4"), x.astype("f4"), dx=1e-20)


def test_plain_dask_in_rounds(enabled: Any) -> None:
    rhs = da.from_array(RHS, chunks=5)
    with dask.config.set(array_optimize=None):
        _, info = dgpu.jacobi(da.zeros_like(rhs), rhs, max_iterations=50)
    assert info.checked == (0, 20, 40, 50)


@pytest.mark.slow
def test_several_at_once() -> None:
    """Each has the record of its own gang."""
    rhs = da.from_array(RHS, chunks=5)

    def solve(iterations: int) -> tuple[da.Array, dgpu.JacobiInfo]:
        return dgpu.jacobi(da.zeros_like(rhs), rhs, max_iterations=iterations)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(solve, [10, 20, 30, 20]))
    assert [info.iterations for _, info in found] == [10, 20, 30, 20]
