"""Ufuncs with ``where``: elements of ``out`` that it does not select stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr

import dask_dgpu as dgpu
from tests.batches.test_run import A, Dataset
from tests.support.memory import bounded

MASK = A > 0.5
MASKS: dict[str, Any] = {
    "mask": MASK,
    "row": MASK[:1],
    "axis less": MASK[0],
    "list": MASK.tolist(),
    "list of an axis": MASK[0].tolist(),
    "column": MASK[:, :1],
    "stored": zarr.array(MASK, chunks=(7, 9)),
    "graph": da.from_array(MASK, chunks=(20, 11)),
    "none": False,
    "NumPy's none": np.bool_(False),
    "all": True,
}
OUTS: dict[str, Callable[[Any], Any]] = {
    "NumPy": lambda x: x,
    "Fortran order": np.asfortranarray,
    "zarr": lambda x: zarr.array(x, chunks=(7, 9)),
    "dataset": Dataset,
}


def values(out: Any) -> Any:
    return out.values if isinstance(out, Dataset) else np.asarray(out)


@pytest.mark.parametrize("limit", [None, 10_000])
@pytest.mark.parametrize("mask", MASKS)
def test_other_elements_stay(mask: str, limit: int | None) -> None:
    where = MASKS[mask]
    expected, out = np.full(A.shape, -7.0), np.full(A.shape, -7.0)
    np.add(A, A, out=expected, where=np.asarray(where))
    with bounded(limit):
        assert dgpu.plan("add", A, A, where=where).feasible
        assert dgpu.run("add", A, A, out=out, where=where) is out
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("kind", OUTS)
def test_any_kind_of_out(kind: str) -> None:
    expected = np.full(A.shape, -7.0)
    np.add(A, A, out=expected, where=MASK)
    out = OUTS[kind](np.full(A.shape, -7.0))
    with bounded(10_000):
        assert dgpu.run(np.add, A, A, out=out, where=MASK) is out
    np.testing.assert_array_equal(values(out), expected)


def test_a_mask_with_more_elements_than_the_operands() -> None:
    column, row = MASK[:, :1], A[:1]
    expected, out = np.zeros(A.shape), np.zeros(A.shape)
    np.add(row, 2, out=expected, where=column)
    dgpu.run("add", row, 2, out=out, where=column)
    np.testing.assert_array_equal(out, expected)
    assert dgpu.run("add", row, 2, where=column).shape == A.shape


@pytest.mark.parametrize("call", [dgpu.run, dgpu.plan])
def test_a_mask_of_integers_is_refused_as_in_numpy(call: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="to dtype\\('bool'\\)"):
        call("exp", A, where=MASK.astype(int))


def test_other_elements_have_every_bit() -> None:
    big = 2**60 + 1
    out = np.full(4, big)
    x = np.arange(4, dtype=np.uint64)
    dgpu.run("add", x, x, out=out, where=np.array([True, False, True, False]))
    assert out.tolist() == [0, big, 4, big]


def test_a_mask_that_is_written_is_refused() -> None:
    out = np.zeros(4, bool)
    with pytest.raises(ValueError, match="out not to share memory with where"):
        dgpu.run("logical_not", np.ones(4, bool), out=out, where=out)


def test_selected_elements_are_right_without_out() -> None:
    with bounded(10_000):
        found = dgpu.run("add", A, A, where=MASK)
    np.testing.assert_array_equal(found[MASK], 2 * A[MASK])


@pytest.mark.parametrize("limit", [None, 10_000])
def test_an_operand_that_is_a_list(limit: int | None) -> None:
    expected, out = np.full(A.shape, -7.0), np.full(A.shape, -7.0)
    np.add(A, A[0], out=expected, where=MASK)
    with bounded(limit):
        dgpu.run("add", A, A[0].tolist(), out=out, where=MASK)
    np.testing.assert_array_equal(out, expected)
