"""``dgpu.einsum`` against NumPy: any subscripts, shapes, chunks and dtypes."""

from __future__ import annotations

import warnings
from math import prod
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.array.core import slices_from_chunks
from hypothesis import given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from tests.support.profiles import examples

Array = Any

OUTER = pytest.mark.filterwarnings("ignore:Increasing number of chunks")
"""Dask's warning about outer products."""

LETTERS = "abcdef"
SIZES = [0, 1, 2, 3, 5, 7]
DTYPES = ["bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64"]


def filled(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    """Return small integers, so sums are exact in most dtypes."""
    values = np.random.default_rng(seed).integers(-2, 3, (2, *shape))
    return (values[0] + 1j * values[1] if dtype.startswith("c") else values[0]).astype(dtype)


def chunked(draw: Any, a: Array) -> da.Array:
    chunks = tuple(draw(st.integers(1, max(1, n))) for n in a.shape)
    return da.from_array(a, chunks=chunks)


@st.composite
def cases(draw: Any) -> tuple[str, list[Array], list[da.Array]]:
    """Draw subscripts and operands, whose axes may be repeated, broadcast or ``...``."""
    sizes = {letter: draw(st.sampled_from(SIZES)) for letter in LETTERS}
    around = tuple(draw(st.lists(st.sampled_from([1, 2, 3]), max_size=2)))
    terms, arrays = [], []
    for at in range(draw(st.integers(1, 4))):
        indices = draw(st.lists(st.sampled_from(LETTERS), max_size=3))
        single = draw(st.sets(st.sampled_from(LETTERS), max_size=1))
        shape = tuple(1 if i in single else sizes[i] for i in indices)
        term = "".join(indices)
        if draw(st.booleans()):
            where = draw(st.integers(0, len(indices)))
            used = around[draw(st.integers(0, len(around))) :]
            used = tuple(draw(st.sampled_from([1, n])) for n in used)
            shape = shape[:where] + used + shape[where:]
            term = term[:where] + "..." + term[where:]
        terms.append(term)
        arrays.append(filled(shape, draw(st.sampled_from(DTYPES)), at))
    text = ",".join(terms)
    if draw(st.booleans()):
        present = sorted(set(text) - set(".,"))
        output = "".join(draw(st.permutations(present))[: draw(st.integers(0, 4))])
        text += "->" + ("..." if "." in text else "") + output
    return text, arrays, [chunked(draw, a) for a in arrays]


def check(y: da.Array, wanted: Array, terms: int) -> None:
    """Compare the result, its blocks and its declaration with NumPy's."""
    assert (y.dtype, y.shape, y._meta.dtype) == (wanted.dtype, wanted.shape, wanted.dtype)
    blocks = dask.compute(*np.ravel(y.to_delayed()), scheduler="synchronous")
    value = np.empty(y.shape, y.dtype)
    for block, where in zip(blocks, slices_from_chunks(y.chunks), strict=True):
        assert (block.shape, block.dtype) == (value[where].shape, wanted.dtype)
        value[where] = block
    close(value, wanted, terms)


def close(value: Array, wanted: Array, terms: int) -> None:
    """Compare within the rounding of sums of this many terms."""
    if wanted.dtype.kind in "fc":
        eps = float(np.finfo(wanted.dtype).eps)
        largest = float(np.abs(wanted).astype("float64").max(initial=1.0))
        np.testing.assert_allclose(value, wanted, rtol=0, atol=4 * eps * max(terms, 1) * largest)
    else:
        np.testing.assert_array_equal(value, wanted)


def numpys(text: str, *arrays: Array) -> Array:
    """Return NumPy's result; with ``optimize`` it would multiply in narrower dtypes."""
    dtype = np.result_type(*arrays)
    return np.asarray(np.einsum(text, *(a.astype(dtype) for a in arrays), optimize=True))


@OUTER
@pytest.mark.filterwarnings("ignore:overflow encountered in scalar multiply")
@examples(400)
@given(cases())
def test_it_equals_numpy(case: tuple[str, list[Array], list[da.Array]]) -> None:
    text, arrays, operands = case
    terms = prod(max(a.shape, default=1) for a in arrays)
    check(dgpu.einsum(text, *operands), numpys(text, *arrays), terms)


X, Y, Z = (filled(shape, "float64", 1) for shape in ((6, 8), (8, 5), (5, 7)))
CHAIN = [da.from_array(a, chunks=(3, 2)) for a in (X, Y, Z)]


@pytest.mark.parametrize(("output", "index"), [("ijkl", "j"), ("il", "k")], ids=["join", "add"])
def test_slices_are_joined_or_added(output: str, index: str) -> None:
    text, path = f"ij,jk,kl->{output}", [(0, 1), (0, 1)]
    plan = dgpu.einsum_path(text, *CHAIN, optimize=path, memory_limit=96)
    assert index in plan.slices
    y = dgpu.einsum(text, *CHAIN, optimize=path, memory_limit=96)
    np.testing.assert_array_equal(y.compute(), np.einsum(text, X, Y, Z))


def test_chunks_are_those_of_the_operands() -> None:
    x = da.ones((6, 8), chunks=((1, 5), 4))
    y = da.ones((8, 9), chunks=(8, (2, 7)))
    assert dgpu.einsum("ij,jk->ik", x, y).chunks == ((1, 5), (2, 7))
    assert dgpu.einsum("ij,jk,jk->ki", x, y, y).chunks == ((2, 7), (1, 5))
    assert dgpu.einsum("ij,ik->ijk", x, y[:6].rechunk((3, 9))).chunks[0] == (1, 2, 3)


def test_outer_products_of_many_chunks_show_no_warning() -> None:
    x = da.ones(40, chunks=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dgpu.einsum("i,j->ij", x, x).numblocks == (20, 20)
        with dgpu.enable(local_ranks=2):
            assert da.einsum("i,j,k->ijk", x, x[:10], x[:10]).shape == (40, 10, 10)
    with pytest.warns(da.PerformanceWarning, match="number of chunks"):
        da.einsum("i,j->ij", x, x)  # Dask's own call


def test_large_chunks_of_a_result_are_not_split() -> None:
    """``da.einsum`` makes its result of smaller chunks than the operands have."""
    x = da.ones((512, 2), chunks=(512, 2))
    assert dgpu.einsum("ij,kj->ik", x, x).numblocks == (1, 1)


def test_other_form_of_a_call() -> None:
    x, y, _ = CHAIN
    np.testing.assert_array_equal(dgpu.einsum(x, [0, 1], y, [1, 2]).compute(), X @ Y)
    np.testing.assert_array_equal(dgpu.einsum(x, [0, 1], y, [1, 2], [2, 0]).compute(), (X @ Y).T)
    z = dgpu.einsum(x[:5], [..., 1], y, [1, ...], [...])
    np.testing.assert_array_equal(z.compute(), np.einsum("ij,ji->i", X[:5], Y))


def test_small_integers_do_not_overflow_before_the_wider_dtype() -> None:
    x = np.full((3, 3), 100, "int8")
    y = dgpu.einsum("ij,jk,kl->il", x, x, np.ones((3, 3), "int64"))
    assert y.dtype == "int64"
    assert (y.compute() == 90_000).all()


def test_more_indices_than_letters() -> None:
    """A chain of 60 matrices; each product has letters of its own."""
    x = da.full((2, 2), 0.5, chunks=1)
    each = [part for at in range(60) for part in (x, [at, at + 1])]
    y = dgpu.einsum(*each, [0, 60])
    np.testing.assert_allclose(y.compute(scheduler="synchronous"), 0.5)


@OUTER
@examples(100)
@given(cases(), st.integers(1, 7), st.sampled_from([None, 100]))
def test_gangs_equal_numpy(
    case: tuple[str, list[Array], list[da.Array]], ranks: int, limit: int | None
) -> None:
    text, arrays, operands = case
    with dgpu.enable(local_ranks=ranks, when="always", on_error="raise"):
        y = dgpu.einsum(text, *operands, memory_limit=limit)
        value = y.compute(scheduler="synchronous")
    wanted = numpys(text, *arrays)
    assert (value.dtype, value.shape) == (wanted.dtype, wanted.shape)
    close(value, wanted, prod(max(a.shape, default=1) for a in arrays))


def test_a_chain_is_one_program() -> None:
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        y = dgpu.einsum("ij,jk,kl->il", *CHAIN)
        assert len(dgpu.explain(y).regions) == 1
        np.testing.assert_array_equal(y.compute(scheduler="threads"), X @ Y @ Z)
