"""``da.einsum``, ``np.einsum`` and ``xarray.dot`` of three operands while dask_dgpu is enabled."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray
from hypothesis import assume, given

import dask_dgpu as dgpu
from tests.array.einsum.test_einsum import OUTER, cases
from tests.support.profiles import examples

TEXT = "ij,jk,kl->il"
ARRAYS = [np.random.default_rng(at).random((12, 12)) for at in range(3)]
OPERANDS = [da.from_array(a, chunks=4) for a in ARRAYS]
DASKS_OWN = da.einsum


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    with dgpu.enable(local_ranks=2, on_error="raise"):
        yield


@pytest.mark.parametrize("owner", [da, np], ids=["dask", "numpy"])
@pytest.mark.parametrize("optimize", [False, True, "greedy", ["einsum_path", (1, 2), (0, 1)]])
def test_it_has_less_work_than_dasks(owner: Any, optimize: Any) -> None:
    y, own = owner.einsum(TEXT, *OPERANDS, optimize=optimize), DASKS_OWN(TEXT, *OPERANDS)
    assert y.name != own.name
    assert (y.dtype, y.shape, y.chunks) == (own.dtype, own.shape, own.chunks)
    assert len(y.dask) < len(own.dask)
    np.testing.assert_allclose(y.compute(scheduler="threads"), np.linalg.multi_dot(ARRAYS))


@OUTER
@examples(100)
@given(cases())
def test_it_equals_dasks(case: tuple[str, list[Any], list[da.Array]]) -> None:
    """In value, dtype, shape and chunks, for whatever Dask computes too."""
    text, _, operands = case
    operands = [x.astype("float64") for x in operands]
    try:
        own = DASKS_OWN(text, *operands)
        wanted = own.compute(scheduler="synchronous")
    except Exception:
        assume(False)
    y = da.einsum(text, *operands)
    assert (y.dtype, y.shape, y.chunks) == (own.dtype, own.shape, own.chunks)
    np.testing.assert_allclose(y.compute(scheduler="synchronous"), wanted)


@OUTER
def test_large_blocks_are_split_as_dask_does() -> None:
    x = da.ones((20, 2), chunks=(10, 2))
    y, own = da.einsum("ai,bi,ci->abc", x, x, x), DASKS_OWN("ai,bi,ci->abc", x, x, x)
    assert max(map(max, own.chunks)) < 10
    assert y.chunks == own.chunks


@pytest.mark.parametrize(
    ("operands", "settings"),
    [
        (OPERANDS, {"dtype": "complex128"}),
        (OPERANDS, {"split_every": 2}),
        (OPERANDS, {"casting": "same_kind"}),
        (OPERANDS, {"order": "C"}),
        (OPERANDS, {"optimize": ("greedy", 1e6)}),
        ([x.astype("int8") for x in OPERANDS], {}),
        ([x > 0.5 for x in OPERANDS], {}),
    ],
    ids=["dtype", "split_every", "casting", "order", "limit", "int8", "bool"],
)
def test_what_dask_computes_otherwise_stays_with_it(
    operands: list[da.Array], settings: dict[str, Any]
) -> None:
    y, own = da.einsum(TEXT, *operands, **settings), DASKS_OWN(TEXT, *operands, **settings)
    assert (y.name, y.dtype) == (own.name, own.dtype)
    np.testing.assert_array_equal(y.compute(), own.compute())


def test_two_operands_stay_with_dask() -> None:
    assert da.einsum("ij,jk", *OPERANDS[:2]).name == DASKS_OWN("ij,jk", *OPERANDS[:2]).name


def test_unknown_chunks_stay_with_dask() -> None:
    v, own = OPERANDS[0][:, 0], ARRAYS[0][:, 0]
    three = [v[v > 0.5]] * 3
    y = da.einsum("i,i,i->i", *three)
    assert y.name == DASKS_OWN("i,i,i->i", *three).name
    np.testing.assert_allclose(y.compute(), own[own > 0.5] ** 3)


def test_signature_and_errors() -> None:
    assert inspect.signature(da.einsum) == inspect.signature(DASKS_OWN)
    with pytest.raises(ValueError, match="No input operands"):
        da.einsum()
    with pytest.raises(ValueError, match="expected 2 operands for 'ij,jk', got 3"):
        da.einsum("ij,jk", *OPERANDS)


def test_xarray_dot() -> None:
    """With opt_einsum, xarray multiplies two arrays at a time itself."""
    a = xarray.DataArray(OPERANDS[0], dims=("i", "j"))
    b = xarray.DataArray(OPERANDS[1], dims=("j", "k"))
    c = xarray.DataArray(OPERANDS[2], dims=("k", "l"))
    for use in (True, False):
        with xarray.set_options(use_opt_einsum=use):
            y = xarray.dot(a, b, c, dim=["j", "k"])
        assert len(y.data.dask) < len(DASKS_OWN(TEXT, *OPERANDS).dask)
        np.testing.assert_allclose(y.values, np.linalg.multi_dot(ARRAYS))
