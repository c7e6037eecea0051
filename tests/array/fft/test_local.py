"""Transforms as gangs without a cluster: one process, ranks as threads."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from tests.support.explained import said
from tests.support.profiles import examples

ALWAYS = {"on_error": "raise", "when": "always"}
NAMES = [
    *("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"),
    *("fft2", "ifft2", "rfft2", "irfft2", "fftn", "ifftn", "rfftn", "irfftn"),
]
REAL = ("rfft", "ihfft", "rfft2", "rfftn")
DTYPES = ["bool", "int16", "float16", "float32", "float64", "complex64", "complex128"]
LENGTHS = [1, 2, 3, 5, 8, 13, 20]


@pytest.fixture(autouse=True, params=[1, 3], ids="ranks={}".format)
def enabled(request: pytest.FixtureRequest) -> Iterator[dgpu.Enabled]:
    with dgpu.enable(local_ranks=request.param, **ALWAYS) as state:
        yield state


def numbers(shape: tuple[int, ...], dtype: str = "complex128") -> Any:
    rng = np.random.default_rng(sum(shape))
    values = rng.random(shape) + 0.5
    if dtype[0] == "c":
        values = values + 1j * rng.random(shape)
    return (values if dtype[0] in "fc" else 5 * values).astype(dtype)


def check(y: da.Array, a: Any, name: str, **arguments: Any) -> None:
    """Compare with NumPy in double precision, and what was declared with what came."""
    value = y.compute(scheduler="synchronous")
    with warnings.catch_warnings(action="ignore"):
        declared = getattr(np.fft, name)(a, **arguments)
        wide = a.astype(np.result_type(a.dtype, np.float64))
        wanted = getattr(np.fft, name)(wide, **arguments)
    assert (value.shape, value.dtype) == (y.shape, y.dtype) == (declared.shape, declared.dtype)
    # along whole axes Dask's own function runs, and NumPy scales float16 in half precision
    eps = np.finfo("float16" if a.dtype == np.float16 else value.dtype).eps
    bound = 8 * float(eps) * max(1.0, math.log2(max(2, wanted.size)))
    assert np.linalg.norm(value - wanted) <= bound * np.linalg.norm(wanted)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layout", ["any", "input"])
def test_every_function_is_a_gang(name: str, layout: str, gangs: list[str]) -> None:
    a = numbers((12, 10), "float64" if name in REAL else "complex128")
    with dask.config.set({"dgpu.fft.output-layout": layout}):
        y = getattr(da.fft, name)(da.from_array(a, chunks=(5, 4)))
    check(y, a, name)
    assert len(gangs) == 1
    if layout == "input" and y.shape == a.shape:
        assert y.chunks == ((5, 5, 2), (4, 4, 2))


@examples(100)
@given(data=st.data(), name=st.sampled_from(NAMES), dtype=st.sampled_from(DTYPES))
def test_any_chunks(data: st.DataObject, name: str, dtype: str) -> None:
    if name in REAL and dtype[0] == "c":
        dtype = "float32"
    shape = tuple(data.draw(st.lists(st.sampled_from(LENGTHS), min_size=2, max_size=3)))
    chunks = tuple(data.draw(st.integers(1, length)) for length in shape)
    norm = data.draw(st.sampled_from([None, "ortho", "forward", "backward"]))
    ndim = len(shape)
    lengths = st.integers(1, 24)
    arguments: dict[str, Any] = {"norm": norm}
    if name.endswith("fft"):
        arguments["axis"] = data.draw(st.integers(-ndim, ndim - 1))
        least = 2 if name in ("irfft", "hfft") else 1
        arguments["n"] = data.draw(st.none() | lengths) or max(least, shape[arguments["axis"]])
    else:
        axes = data.draw(st.permutations(range(ndim)))
        count = 2 if name.endswith("2") else data.draw(st.integers(1, ndim))
        arguments["axes"] = tuple(axes[:count])
        arguments["s"] = tuple(data.draw(lengths) for _ in range(count))
    a = numbers(shape, dtype)
    check(getattr(da.fft, name)(da.from_array(a, chunks=chunks), **arguments), a, name, **arguments)


def test_there_and_back(gangs: list[str]) -> None:
    a = numbers((16, 12))
    x = da.from_array(a, chunks=(4, 12))
    z = da.fft.ifft2(da.fft.fft2(x))
    np.testing.assert_allclose(z.compute(), a, rtol=1e-13)
    assert z.chunks == x.chunks
    assert len(gangs) == 1


def test_within_larger_graphs(gangs: list[str]) -> None:
    a, b = numbers((16, 12)), numbers((12, 16))
    x, y = da.from_array(a, chunks=(4, 12)), da.from_array(b, chunks=(3, 16))
    z = (np.fft.fft2(x) @ np.fft.fft2(y)).real.sum(axis=0)
    wanted = (np.fft.fft2(a) @ np.fft.fft2(b)).real.sum(axis=0)
    np.testing.assert_allclose(z.compute(), wanted, rtol=1e-12)
    # the factors are cut differently along the contraction: one is rechunked
    (gang,) = gangs
    kinds = sorted(name.strip().partition("-")[0] for name in gang.split(","))
    assert kinds == ["fft2", "fft2", "matmul", "rechunk"]


def test_a_corner_is_left_to_dask(gangs: list[str]) -> None:
    a = numbers((16, 12))
    y = da.fft.fft2(da.from_array(a, chunks=(4, 12)))
    (declined,) = dgpu.explain(y[:2, :2]).declined
    assert declined.reason == "most of the blocks that it makes are not wanted"
    np.testing.assert_allclose(y[:2, :2].compute(), np.fft.fft2(a)[:2, :2], rtol=1e-13)
    assert gangs == []


def test_explained() -> None:
    y = da.fft.fft2(da.ones((16, 12), chunks=(4, 12)))
    (piece,) = dgpu.explain(y).to_dict()["rewritten"]
    assert piece["tasks"] == 4 + y.npartitions + 1
    assert piece["stages"] == 2
    assert "fft2: gang: " in said(dgpu.explain(y))
    assert "by 1 exchange" in said(dgpu.explain(y))
