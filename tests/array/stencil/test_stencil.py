"""``dgpu.stencil`` against SciPy: plain Dask, and gangs whose ranks are threads."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.ndimage
from hypothesis import given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from tests.support.explained import said
from tests.support.profiles import examples

Array = Any
ALWAYS = {"on_error": "raise", "when": "always"}
MODES = {"periodic": "grid-wrap", "reflect": "reflect", "mirror": "mirror", "nearest": "nearest"}
BOUNDARIES = ["zero", "periodic", "reflect", "mirror", "nearest", 1.5]
DTYPES = ["bool", "int16", "uint8", "float16", "float32", "float64", "complex64", "complex128"]


@pytest.fixture(autouse=True, params=[None, 1, 3], ids="ranks={}".format)
def enabled(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param is None:
        yield None
    else:
        with dgpu.enable(local_ranks=request.param, **ALWAYS) as state:
            yield state


def reference(a: Array, kernel: Array, boundary: Any, iterations: int) -> Array:
    wide = a.astype(np.result_type(a.dtype, "float64"))
    for _ in range(iterations):
        if isinstance(boundary, str) and boundary != "zero":
            wide = scipy.ndimage.correlate(wide, kernel, mode=MODES[boundary])
        else:
            value = 0.0 if boundary == "zero" else boundary
            wide = scipy.ndimage.correlate(wide, kernel, mode="constant", cval=value)
    return wide


def check(y: da.Array, a: Array, kernel: Array, boundary: Any, iterations: int) -> None:
    value = y.compute(scheduler="synchronous")
    assert (value.shape, value.dtype) == (y.shape, y.dtype)
    kept = a.dtype if a.dtype.kind in "fc" else np.dtype("float64")
    assert value.dtype == kept
    wanted = reference(a, kernel, boundary, iterations)
    total = max(1.0, float(np.abs(kernel).sum())) ** iterations
    scale = max(1.0, float(np.abs(a.astype("complex128")).max(initial=0)), 1.5) * total
    bound = 8 * float(np.finfo(value.dtype).eps) * (kernel.size + 1) * max(1, iterations) * scale
    np.testing.assert_allclose(value.astype(wanted.dtype), wanted, rtol=0, atol=bound)


def numbers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    values = rng.uniform(-1, 1, shape)
    if dtype[0] == "c":
        values = values + 1j * rng.uniform(-1, 1, shape)
    return (values if dtype[0] in "fc" else np.abs(5 * values)).astype(dtype)


@examples(60)
@given(data=st.data(), dtype=st.sampled_from(DTYPES), boundary=st.sampled_from(BOUNDARIES))
def test_equals_scipy(data: st.DataObject, dtype: str, boundary: Any) -> None:
    ndim = data.draw(st.integers(1, 3))
    shape = tuple(data.draw(st.sampled_from([2, 3, 5, 8, 13])) for _ in range(ndim))
    lengths = tuple(data.draw(st.sampled_from([1, 3, 5])) for _ in shape)
    kernel = numbers(lengths, "float64", data.draw(st.integers(0, 9)))
    chunks = tuple(data.draw(st.integers(1, n)) for n in shape)
    iterations = data.draw(st.integers(0, 3))
    a = numbers(shape, dtype, data.draw(st.integers(0, 9)))
    x = da.from_array(a, chunks=chunks)
    y = dgpu.stencil(x, kernel, boundary=boundary, iterations=iterations)
    assert y.chunks == x.chunks
    check(y, a, kernel, boundary, iterations)


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("name", ["LAPLACIAN_5PT", "LAPLACIAN_9PT"])
def test_laplacians(boundary: Any, name: str, gangs: list[str], enabled: Any) -> None:
    a, kernel = numbers((20, 31), "float64"), getattr(dgpu, name)
    x = da.from_array(a, chunks=(6, 7))
    check(dgpu.stencil(x, kernel, boundary=boundary), a, kernel, boundary, 1)
    assert len(gangs) == (0 if enabled is None else 1)


def test_a_polynomial_is_differentiated() -> None:
    i, j = np.mgrid[:9, :11].astype(float)
    x = da.from_array(i**2 + 3 * j**2 + i * j, chunks=4)
    for kernel in (dgpu.LAPLACIAN_5PT, dgpu.LAPLACIAN_9PT):
        value = dgpu.stencil(x, kernel).compute()
        np.testing.assert_allclose(value[1:-1, 1:-1], 8, atol=1e-12)


def test_boundaries_of_each_axis() -> None:
    a = numbers((6, 7), "float64")
    x = da.from_array(a, chunks=3)
    value = dgpu.stencil(x, boundary=("periodic", "reflect")).compute()
    wide = np.pad(np.pad(a, ((1, 1), (0, 0)), "wrap"), ((0, 0), (1, 1)), "symmetric")
    wanted = scipy.ndimage.correlate(wide, dgpu.LAPLACIAN_5PT)[1:-1, 1:-1]
    np.testing.assert_allclose(value, wanted, atol=1e-13)


def test_complex_weights_make_complex_numbers() -> None:
    a = numbers((9,), "float32")
    y = dgpu.stencil(da.from_array(a, chunks=4), [1j, 2, -1j])
    assert y.dtype == "complex64"
    wanted = scipy.ndimage.correlate(a.astype("complex64"), np.array([1j, 2, -1j]), mode="constant")
    # SciPy conjugates the weights of a correlation
    np.testing.assert_allclose(y.compute(), np.conj(wanted), atol=1e-6)


def test_zero_weights_carry_nothing_on() -> None:
    a = np.zeros((9, 9))
    a[4, 4] = np.nan
    value = dgpu.stencil(da.from_array(a, chunks=3)).compute()
    assert np.isnan(value).sum() == 5


@pytest.mark.parametrize("iterations", [1, 5])
def test_empty_arrays(iterations: int) -> None:
    x = da.zeros((0, 5), chunks=(1, 2))
    y = dgpu.stencil(x, np.ones((1, 3)), iterations=iterations)
    assert y.compute().shape == (0, 5)


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_chunks_that_are_empty_or_thinner_than_the_stencil(boundary: Any) -> None:
    a, kernel = numbers((7, 6), "float64"), numbers((5, 5), "float64", 1)
    x = da.from_array(a, chunks=((0, 1, 3, 0, 2, 1), (1, 5, 0)))
    y = dgpu.stencil(x, kernel, boundary=boundary, iterations=2)
    assert y.chunks == x.chunks
    check(y, a, kernel, boundary, 2)


def test_within_larger_graphs(gangs: list[str], enabled: Any) -> None:
    a = numbers((24, 18), "float64")
    x = da.from_array(a, chunks=(6, 6))
    y = dgpu.stencil(x + 1, boundary="periodic")
    z = (dgpu.stencil(y * 0.1, boundary="nearest") ** 2).sum()
    first = reference(a + 1, dgpu.LAPLACIAN_5PT, "periodic", 1)
    second = reference(0.1 * first, dgpu.LAPLACIAN_5PT, "nearest", 1)
    np.testing.assert_allclose(z.compute(), (second**2).sum(), rtol=1e-12)
    assert len(gangs) == (0 if enabled is None else 1)


def test_a_long_iteration(gangs: list[str], enabled: Any) -> None:
    a, kernel = numbers((40, 30), "float64"), 0.2 * dgpu.LAPLACIAN_5PT
    kernel = np.array(kernel)
    kernel[1, 1] += 1  # heat that spreads
    y = dgpu.stencil(da.from_array(a, chunks=16), kernel, boundary="reflect", iterations=50)
    value = y.compute(scheduler="synchronous")
    np.testing.assert_allclose(value, reference(a, kernel, "reflect", 50), atol=1e-13)
    assert value.sum() == pytest.approx(a.sum())
    assert len(gangs) == (0 if enabled is None else 1)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"kernel": np.ones((2, 3))},
            ValueError,
            "expected kernel of odd length along axis 0, got 2",
        ),
        (
            {"kernel": np.ones((3, 0))},
            ValueError,
            "expected kernel of odd length along axis 1, got 0",
        ),
        ({"kernel": np.ones(3)}, ValueError, "expected kernel to have 2 axes as x, got 1"),
        (
            {"kernel": np.ones((15, 1))},
            ValueError,
            "at most 6 elements along axis 0, .* 7",
        ),
        (
            {"kernel": np.full((1, 1), np.nan)},
            ValueError,
            "kernel with finite weights, got NaN",
        ),
        ({"kernel": np.full((1, 1), "a")}, TypeError, "expected kernel to be of .*, got <U1"),
        ({"boundary": "wrap"}, ValueError, "unknown boundary 'wrap', expected one of zero, per"),
        ({"boundary": None}, TypeError, "expected boundary to be one of zero, periodic"),
        ({"boundary": ("zero", 2j)}, ValueError, "boundary to be real for an array of .*, got 2j"),
        ({"boundary": ("zero",)}, ValueError, "boundary to have one entry per axis, 2, got 1"),
        (
            {"iterations": -1},
            ValueError,
            "an integer of at least ., got -1",
        ),
        (
            {"iterations": 1.5},
            TypeError,
            "an integer of at least ., got 1.5",
        ),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        dgpu.stencil(da.ones((6, 7), chunks=3), **arguments)


def test_bad_arrays() -> None:
    x = da.ones(6, chunks=3)
    with pytest.raises(ValueError, match="x with known chunk sizes, got unknown ones along axis 0"):
        dgpu.stencil(x[x > 0], [1.0])
    with pytest.raises(ValueError, match="expected x with at least 1 axis, got 0"):
        dgpu.stencil(x.sum(), 1.0)
    for dtype in ("datetime64[s]", "longdouble", object):
        with pytest.raises(TypeError, match="expected x to be of real or complex numbers"):
            dgpu.stencil(x.astype(dtype), [1.0])


def test_explained(enabled: Any) -> None:
    y = dgpu.stencil(da.ones((16, 12), chunks=(4, 12)), iterations=4)
    explanation = dgpu.explain(y)
    if enabled is not None:
        (piece,) = explanation.to_dict()["rewritten"]
        assert (piece["sweeps"], piece["tasks"]) == (4, 9)
        assert "sweeps an exchange" in said(explanation)


def test_a_corner_is_left_to_dask(gangs: list[str]) -> None:
    a = numbers((16, 12), "float64")
    y = dgpu.stencil(da.from_array(a, chunks=4))[:2, :2]
    wanted = reference(a, dgpu.LAPLACIAN_5PT, "zero", 1)[:2, :2]
    np.testing.assert_allclose(y.compute(), wanted, atol=1e-13)
    assert gangs == []


def test_names_depend_on_what_is_computed() -> None:
    x = da.ones((6, 7), chunks=3)
    assert dgpu.stencil(x).name == dgpu.stencil(x).name
    others = [
        dgpu.stencil(x, dgpu.LAPLACIAN_9PT),
        dgpu.stencil(x, boundary=1),
        dgpu.stencil(x, iterations=2),
        dgpu.stencil(x + 1),
    ]
    assert len({y.name for y in [dgpu.stencil(x), *others]}) == 5


def test_without_optimization() -> None:
    a = numbers((9, 8), "float64")
    y = dgpu.stencil(da.from_array(a, chunks=(2, 3)), iterations=2)
    (value,) = dask.compute(y, optimize_graph=False, scheduler="synchronous")
    wanted = reference(a, dgpu.LAPLACIAN_5PT, "zero", 2)
    np.testing.assert_allclose(value, wanted, atol=1e-12)
    assert prod(y.numblocks) == 15
