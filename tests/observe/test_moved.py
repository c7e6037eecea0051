"""The bytes that an explanation says are those that ranks receive."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu

N, RANKS = 48, 4
QUARTER, HALF = N // RANKS, N // 2
RNG = np.random.default_rng(48)
A, K = RNG.random((N, N)) + 0j, RNG.random((N, N))
BLOCK = A.nbytes // RANKS**2


@pytest.fixture(autouse=True)
def _enabled() -> Iterator[None]:
    with dgpu.enable(when="always", on_error="raise", local_ranks=RANKS):
        yield


def rows_of(y: da.Array) -> tuple[list[int], int]:
    """Return the bytes of the rows of the only gang, and those of the gang."""
    explanation = dgpu.explain(y).to_dict()
    (gang,) = explanation["regions"]
    moved = [each["moved_bytes"] for each in explanation["operations"] if each["by"] == "gang"]
    return [nbytes for nbytes in moved if nbytes is not None], gang["moved_bytes"]


@pytest.mark.parametrize(
    "chunks",
    [(QUARTER, N), (N, QUARTER), (QUARTER, QUARTER), (HALF, HALF)],
    ids=["rows", "columns", "squares", "halves"],
)
def test_rows_of_transforms_there_and_back(chunks: tuple[int, int], ledgers: list[Any]) -> None:
    x, k = da.from_array(A, chunks=chunks), da.from_array(K, chunks=chunks)
    y = da.fft.ifft2(da.fft.fft2(x) * k).real
    rows, whole = rows_of(y)
    expected = np.fft.ifft2(np.fft.fft2(A) * K).real
    np.testing.assert_allclose(y.compute(scheduler="threads"), expected, atol=1e-12)
    assert [each.bytes_received for each in ledgers] == [whole] * RANKS
    assert sum(rows) == whole > 0


def test_two_transforms_of_rows_take_an_exchange_each() -> None:
    x, k = (da.from_array(each, chunks=(QUARTER, N)) for each in (A, K))
    rows, _ = rows_of(da.fft.ifft2(da.fft.fft2(x) * k).real)
    exchanged, blocks = (RANKS - 1) * BLOCK, (RANKS - 1) * BLOCK // 2  # of k, real numbers
    assert [nbytes for nbytes in rows if nbytes] == [exchanged, blocks, exchanged]


def test_a_row_is_no_more_than_its_gang(ledgers: list[Any]) -> None:
    """The steps of a running sum send to one rank after another."""
    x = da.from_array(A, chunks=(QUARTER, N))
    y = da.cumsum(x, axis=0)
    (row,), whole = rows_of(y)
    np.testing.assert_allclose(y.compute(scheduler="threads"), A.cumsum(axis=0))
    assert row == whole > 0
