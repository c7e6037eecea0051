"""``dgpu.poisson`` against the discrete Laplacian, a sparse direct solver, and its cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
from hypothesis import given
from hypothesis import strategies as st
from scipy.ndimage import correlate1d

import dask_dgpu as dgpu
from tests.support.explained import said
from tests.support.profiles import examples

BOUNDARIES = ["periodic", "zero", "reflect"]
MODES = {"periodic": "wrap", "zero": "constant", "reflect": "reflect"}
RESULTS = {
    "bool": "float64",
    "int16": "float64",
    "uint64": "float64",
    "float16": "float32",
    "float32": "float32",
    "float64": "float64",
    "complex64": "complex64",
    "complex128": "complex128",
}
"""Dtypes of a right-hand side, and of the solution."""


def numbers(shape: tuple[int, ...], dtype: str) -> Any:
    rng = np.random.default_rng(sum(shape))
    values = 9 * rng.random(shape) - 2
    if dtype[0] == "c":
        values = values + 1j * rng.random(shape)
    return (values > 3 if dtype == "bool" else abs(values) if dtype[0] == "u" else values).astype(
        dtype
    )


def laplacian(u: Any, dx: tuple[float, ...], boundaries: tuple[str, ...]) -> Any:
    """Apply the discrete operator as SciPy's filters do, in double precision."""
    if np.iscomplexobj(u):
        return laplacian(u.real, dx, boundaries) + 1j * laplacian(u.imag, dx, boundaries)
    return sum(
        correlate1d(u.astype(float), np.array([1.0, -2, 1]) / step**2, axis, mode=MODES[boundary])
        for axis, (step, boundary) in enumerate(zip(dx, boundaries, strict=True))
    )


def check(u: da.Array, f: Any, dx: Any, boundaries: tuple[str, ...]) -> None:
    """Compare what the operator makes of the solution with what it was to make."""
    value = u.compute(scheduler="synchronous")
    assert (u.shape, u.dtype.name) == (f.shape, RESULTS[f.dtype.name])
    assert (value.shape, value.dtype) == (u.shape, u.dtype)
    wanted = f.astype(np.result_type(f.dtype, np.float64))
    eps, n = float(np.finfo(value.dtype).eps), max(2, f.size)
    if "zero" not in boundaries:
        bound = 8 * eps * math.log2(n) * abs(value).max()
        assert abs(value.astype(wanted.dtype).mean()) <= bound
        wanted = wanted - wanted.mean()
    steps = np.broadcast_to(dx, f.ndim)
    norm = 4 * sum(1 / step**2 for step in steps) * np.linalg.norm(value)
    bound = 8 * eps * math.log2(n) * (norm + np.linalg.norm(f.astype(wanted.dtype)))
    residual = np.linalg.norm(laplacian(value, tuple(steps), boundaries) - wanted)
    assert residual <= bound


@st.composite
def problems(draw: st.DrawFn) -> tuple[Any, Any, tuple[float, ...], tuple[str, ...]]:
    lengths = st.sampled_from([1, 2, 3, 5, 7, 8, 12])
    shape = tuple(draw(st.lists(lengths, min_size=1, max_size=4)))
    chunks = []
    for length in shape:
        cuts = draw(st.sets(st.integers(1, length), max_size=3))
        chunks.append(tuple(np.diff(sorted({0, length} | cuts)).tolist()))
    boundaries = draw(
        st.sampled_from(BOUNDARIES).map(lambda each: (each,) * len(shape))
        | st.tuples(*[st.sampled_from(BOUNDARIES)] * len(shape))
    )
    steps = st.sampled_from([0.125, 1.0, 3.0])
    dx = draw(steps.map(lambda each: (each,) * len(shape)) | st.tuples(*[steps] * len(shape)))
    return numbers(shape, draw(st.sampled_from(list(RESULTS)))), tuple(chunks), dx, boundaries


@examples(200)
@given(problem=problems(), layout=st.sampled_from(["any", "input"]))
def test_operator_gives_the_right_hand_side_back(problem: Any, layout: str) -> None:
    f, chunks, dx, boundaries = problem
    x = da.from_array(f, chunks=chunks)
    with dask.config.set({"dgpu.fft.output-layout": layout}):
        u = dgpu.poisson(x, dx, boundaries)
    check(u, f, dx, boundaries)
    if layout == "input":
        assert u.chunks == x.chunks


@examples(100)
@given(problem=problems(), ranks=st.integers(1, 7))
def test_gangs(problem: Any, ranks: int) -> None:
    f, chunks, dx, boundaries = problem
    with dgpu.enable(local_ranks=ranks, on_error="raise", when="always"):
        check(dgpu.poisson(da.from_array(f, chunks=chunks), dx, boundaries), f, dx, boundaries)


def matrix(n: int, dx: float, boundary: str) -> Any:
    """Return the operator along one axis as a sparse matrix."""
    line = scipy.sparse.diags_array([1.0, -2.0, 1.0], offsets=[-1, 0, 1], shape=(n, n)).tolil()
    if boundary == "periodic":
        line[0, n - 1] += 1
        line[n - 1, 0] += 1
    if boundary == "reflect":
        line[0, 0] += 1
        line[n - 1, n - 1] += 1
    return line.tocsc() / dx**2


@pytest.mark.parametrize("shape", [(1,), (13,), (6, 7), (4, 5, 3), (3, 2, 4, 3)])
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_equals_a_sparse_direct_solver(shape: tuple[int, ...], boundary: str) -> None:
    """Without a boundary of zeros, the first unknown is set and the mean taken off."""
    dx = (0.5, 1.0, 2.0, 0.25)[: len(shape)]
    lines = [matrix(n, step, boundary) for n, step in zip(shape, dx, strict=True)]
    operator = reduce(scipy.sparse.kronsum, lines[::-1]).tocsc() if len(shape) > 1 else lines[0]
    f = numbers(shape, "float64")
    u = dgpu.poisson(da.from_array(f, chunks=2), dx, boundary).compute()
    if boundary == "zero":
        wanted = scipy.sparse.linalg.spsolve(operator, f.ravel())
    else:
        wanted = np.zeros(f.size)
        right = (f - f.mean()).ravel()[1:]
        if f.size > 1:
            wanted[1:] = scipy.sparse.linalg.spsolve(operator[1:, 1:], right)
        wanted -= wanted.mean()
    np.testing.assert_allclose(
        u.ravel(), wanted, rtol=1e-11, atol=1e-12 * max(1, abs(wanted).max())
    )


def test_a_wave_with_an_analytic_solution() -> None:
    """The discrete solution tends to the continuous one as the square of the distance."""
    errors = []
    for n in (32, 64):
        h = 1 / (n + 1)
        x = np.arange(1, n + 1) * h
        exact = np.sin(np.pi * x)[:, None] * np.sin(2 * np.pi * x)
        u = dgpu.poisson(da.from_array(-5 * np.pi**2 * exact, chunks=(n // 4, n)), h, "zero")
        errors.append(abs(u.compute() - exact).max())
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.1)


@pytest.mark.parametrize("dx", [1e-30, 1e25])
def test_extreme_distances_in_single_precision(dx: float) -> None:
    f = numbers((8, 6), "float32")
    unit = dgpu.poisson(da.from_array(f, chunks=(3, 6)), 1.0, "zero").compute()
    if dx < 1:  # the result fits in single precision, the scaled input does not
        f = f / np.float32(1e-35)
        unit = unit / np.float32(1e-35)
    else:
        f = f * np.float32(1e-35)
        unit = unit * np.float32(1e-35)
    u = dgpu.poisson(da.from_array(f, chunks=(3, 6)), dx, "zero").compute()
    np.testing.assert_allclose(u.astype(float) / dx / dx, unit, rtol=1e-4)


def test_default_is_periodic_of_distance_one() -> None:
    f = numbers((6, 5), "float64")
    check(dgpu.poisson(f.tolist()), f, 1.0, ("periodic", "periodic"))
    assert dgpu.poisson(X).name == dgpu.poisson(X, 1.0, "periodic").name
    assert dgpu.poisson(X).name != dgpu.poisson(X, 2.0).name


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_empty(boundary: str) -> None:
    u = dgpu.poisson(da.zeros((0, 4), dtype="int8", chunks=2), boundary=boundary)
    np.testing.assert_array_equal(u.compute(), np.zeros((0, 4)), strict=True)


# What it costs.


@pytest.fixture
def ran(programs: list[Any]) -> Iterator[list[Any]]:
    """The launches of the programs that were run."""
    with dgpu.enable(local_ranks=4, on_error="raise", when="always"):
        yield programs


def test_within_a_larger_graph(ran: list[Any]) -> None:
    """The field of a charge: made, solved and derived by one gang."""
    n = 12
    k = da.arange(n, chunks=3)
    charge = da.exp(-((k[:, None] - 5.5) ** 2) - (k.rechunk(n)[None, :] - 5.5) ** 2)
    energy = (charge * dgpu.poisson(charge, boundary="zero")).sum()
    numpys = np.exp(-((np.arange(n) - 5.5) ** 2))
    numpys = numpys[:, None] * numpys
    operator = scipy.sparse.kronsum(matrix(n, 1, "zero"), matrix(n, 1, "zero")).tocsc()
    wanted = numpys.ravel() @ scipy.sparse.linalg.spsolve(operator, numpys.ravel())
    np.testing.assert_allclose(energy.compute(), wanted, rtol=1e-12)
    assert len(ran) == 1


def test_a_region_that_a_user_is_told_of(ran: list[Any]) -> None:
    u = dgpu.poisson(da.ones((16, 12), chunks=(4, 12)), boundary="zero")
    explanation = dgpu.explain(u)
    text = said(explanation)
    assert text.count("by 1 exchange") == 2
    assert len(explanation.regions) == 1


# Bad input.

X = da.ones((6, 4), chunks=(2, 4))
MASKED = X.map_blocks(np.ma.array, meta=np.ma.array(np.empty((0, 0))))

BAD: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "boundary": (
        lambda: dgpu.poisson(X, 1.0, "nearest"),
        ValueError,
        "unknown boundary 'nearest', expected one of zero, reflect, periodic",
    ),
    "a boundary of two": (lambda: dgpu.poisson(X, 1, ("zero", "")), ValueError, "unknown boundary"),
    "nested": (
        lambda: dgpu.poisson(X, 1, [["zero"], ""]),
        TypeError,
        "expected boundary to be one of zero, reflect, periodic, got .'zero'.",
    ),
    "boundaries": (
        lambda: dgpu.poisson(X, 1, ["zero"] * 3),
        ValueError,
        "one entry .*, got 3",
    ),
    "no boundary": (
        lambda: dgpu.poisson(X, 1, None),
        TypeError,
        "boundary to be one of zero, reflect, periodic, got None",
    ),
    "zero": (
        lambda: dgpu.poisson(X, 0.0),
        ValueError,
        "dx to be a positive .*, got 0.0",
    ),
    "negative": (
        lambda: dgpu.poisson(X, (1, -2)),
        ValueError,
        "dx to be a positive .*, got -2",
    ),
    "nan": (
        lambda: dgpu.poisson(X, math.nan),
        ValueError,
        "dx to be a positive .*, got nan",
    ),
    "infinite": (
        lambda: dgpu.poisson(X, math.inf),
        ValueError,
        "dx to be a positive .*, got inf",
    ),
    "distances": (
        lambda: dgpu.poisson(X, (1, 1, 1)),
        ValueError,
        "dx to have one .*, got 3",
    ),
    "text": (
        lambda: dgpu.poisson(X, "1m"),
        TypeError,
        "dx to be a positive .*, got '1m'",
    ),
    "complex distance": (
        lambda: dgpu.poisson(X, 1j),
        TypeError,
        "dx to be a positive .*, got 1j",
    ),
    "object": (lambda: dgpu.poisson(X.astype(object)), TypeError, "rhs to be of .*, got object"),
    "times": (
        lambda: dgpu.poisson(X.astype("M8[s]")),
        TypeError,
        "rhs to be of .* datetime64",
    ),
    "0-d": (lambda: dgpu.poisson(X.sum()), ValueError, "expected rhs with at least 1 axis, got 0"),
    "unknown": (lambda: dgpu.poisson(X[X[:, 0] > 0]), ValueError, "rhs with known chunk sizes"),
    "container": (lambda: dgpu.poisson(MASKED), TypeError, "rhs with blocks .*, got numpy.ma"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_raises_at_the_call(case: str) -> None:
    call, kind, message = BAD[case]
    with pytest.raises(kind, match=message):
        call()
