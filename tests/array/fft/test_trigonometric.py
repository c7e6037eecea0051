"""Cosine and sine transforms of ``dgpu.fft`` against SciPy, for any chunks, plain and as gangs."""

from __future__ import annotations

import inspect
import math
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.fft
from dask.core import flatten
from dask.local import get_sync
from hypothesis import given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from tests.support.profiles import examples

LINES = ["dct", "idct", "dst", "idst"]
GRIDS = ["dctn", "idctn", "dstn", "idstn"]
DTYPES = ["bool", "int8", "uint16", "float16", "float32", "float64", "complex64", "complex128"]
NORMS = ["backward", "ortho", "forward", None]
A = np.random.default_rng(4).random((12, 10))
X = da.from_array(A, chunks=(5, 4))


def numbers(shape: tuple[int, ...], dtype: str) -> Any:
    rng = np.random.default_rng(sum(shape))
    values = rng.random(shape) - 0.4
    if dtype[0] == "c":
        values = values + 1j * rng.random(shape)
    return (values if dtype[0] in "fc" else 9 * values).astype(dtype)


def check(y: da.Array, a: Any, name: str, *arguments: Any, **options: Any) -> None:
    """Compare with SciPy in double precision, and each block with what was declared."""
    wide = a.astype(np.result_type(a.dtype, np.float64))
    wanted = getattr(scipy.fft, name)(wide, *arguments, **options)
    assert y.shape == wanted.shape
    assert y.dtype == getattr(scipy.fft, name)(a, *arguments, **options).dtype
    blocks = np.empty(y.numblocks, object)
    found = get_sync(y.dask, list(flatten(y.__dask_keys__())))
    for index, block in zip(np.ndindex(y.numblocks), found, strict=True):
        assert block.shape == tuple(sizes[at] for sizes, at in zip(y.chunks, index, strict=True))
        assert block.dtype == y.dtype
        assert type(block) is type(y._meta)
        blocks[index] = block
    close(np.block(blocks.tolist()), wanted)
    close(y.compute(scheduler="synchronous"), wanted)


def close(value: Any, wanted: Any) -> None:
    bound = 8 * float(np.finfo(value.dtype).eps) * max(1.0, math.log2(max(1, wanted.size)))
    assert np.linalg.norm(value - wanted) <= bound * np.linalg.norm(wanted)


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, Any, Any, int, dict[str, Any]]:
    name = draw(st.sampled_from(LINES + GRIDS))
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 5, 7, 11, 16]), min_size=1, max_size=4)))
    chunks = []
    for length in shape:
        cuts = draw(st.sets(st.integers(1, length), max_size=4))
        chunks.append(tuple(np.diff(sorted({0, length} | cuts)).tolist()))
    type_ = draw(st.integers(1, 4))
    options: dict[str, Any] = {"norm": draw(st.sampled_from(NORMS))}
    every = st.integers(-len(shape), len(shape) - 1)
    lengths = st.integers(2, 20)
    if name in LINES:
        options |= {"axis": draw(every), "n": draw(lengths)}
    else:
        axes = draw(st.lists(every, min_size=1, unique_by=lambda axis: axis % len(shape)))
        options |= {"axes": tuple(axes), "s": tuple(draw(lengths) for _ in axes)}
    if type_ != 1 and draw(st.booleans()):  # of one element there is no type-I cosine transform
        options.pop("n" if name in LINES else "s")
    return name, numbers(shape, draw(st.sampled_from(DTYPES))), tuple(chunks), type_, options


@examples(200)
@given(call=calls(), layout=st.sampled_from(["any", "input"]))
def test_values(call: Any, layout: str) -> None:
    name, a, chunks, type_, options = call
    x = da.from_array(a, chunks=chunks)
    with dask.config.set({"dgpu.fft.output-layout": layout}):
        y = getattr(dgpu.fft, name)(x, type_, **options)
    check(y, a, name, type_, **options)
    if layout == "input":
        for old, new in zip(x.chunks, y.chunks, strict=True):
            assert new == old or sum(new) != sum(old)


@examples(100)
@given(call=calls(), ranks=st.integers(1, 7))
def test_values_of_gangs(call: Any, ranks: int) -> None:
    name, a, chunks, type_, options = call
    with dgpu.enable(local_ranks=ranks, on_error="raise", when="always"):
        check(
            getattr(dgpu.fft, name)(da.from_array(a, chunks=chunks), type_, **options),
            a,
            name,
            type_,
            **options,
        )


@pytest.mark.parametrize("name", LINES + GRIDS)
def test_defaults_are_those_of_scipy(name: str) -> None:
    check(getattr(dgpu.fft, name)(X), A, name)
    ours = inspect.signature(getattr(dgpu.fft, name)).parameters
    scipys = inspect.signature(getattr(scipy.fft, name)).parameters
    assert list(ours) == list(scipys)[: len(ours)]
    for parameter in ours:
        assert ours[parameter].default == scipys[parameter].default


@pytest.mark.parametrize("name", GRIDS)
def test_s_without_axes_counts_from_the_end(name: str) -> None:
    a = numbers((5, 6, 7), "float64")
    x = da.from_array(a, chunks=(2, 3, 4))
    check(getattr(dgpu.fft, name)(x, s=(4, 9)), a, name, s=(4, 9))
    check(getattr(dgpu.fft, name)(x, s=(-1, 9)), a, name, s=(6, 9))


def test_single_chunks_move_nothing_and_stay() -> None:
    x = da.from_array(A, chunks=(5, -1))
    y = dgpu.fft.dct(x)
    assert y.chunks == x.chunks
    assert len(dict(y.dask)) == 2 * len(dict(x.dask))  # one task a block
    check(y, A, "dct")


def test_there_and_back_is_one_gang(gangs: list[str]) -> None:
    x = da.from_array(A, chunks=(4, 10))
    with dgpu.enable(local_ranks=3, on_error="raise", when="always"):
        z = dgpu.fft.idctn(dgpu.fft.dctn(x))
        np.testing.assert_allclose(z.compute(), A, rtol=1e-13)
    assert z.chunks == x.chunks
    assert len(gangs) == 1


def test_empty() -> None:
    x = da.zeros((0, 6), chunks=(1, 2))
    check(dgpu.fft.dst(x), np.zeros((0, 6)), "dst")
    y = dgpu.fft.dctn(x, s=(4, 6)).compute()
    np.testing.assert_array_equal(y, np.zeros((4, 6)), strict=True)
    assert dgpu.fft.dctn(X, axes=()) is X


def test_takes_what_is_no_dask_array() -> None:
    np.testing.assert_allclose(dgpu.fft.dct([[1, 2], [3, 5]]), scipy.fft.dct([[1, 2], [3, 5]]))
