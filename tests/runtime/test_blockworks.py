"""A function that computes several blocks at once gets all blocks of a rank, in batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu
from dask_dgpu.kernels.device import HostDevice
from dask_dgpu.runtime import tasks
from dask_dgpu.runtime.fused import Fused

RNG = np.random.default_rng(3)
A = RNG.normal(size=(21, 8)).astype("float32")


class Batching(HostDevice):
    batch = 3


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of blocks of each call that computed several."""
    found: list[int] = []
    together = Fused.together

    def noting(self: Fused, calls: Sequence[Sequence[Any]]) -> list[Any]:
        found.append(len(calls))
        return together(self, calls)

    monkeypatch.setattr(Fused, "together", noting)
    monkeypatch.setattr(tasks, "_device", lambda program: Batching())
    return found


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "elementwise": lambda x: (x * 2 + 1) @ x.T,
    "rows on chip": lambda x: (np.exp(x - x.max(1, keepdims=True)) * 2) @ x.T,
    "reduced rows": lambda x: ((x * x).sum(axis=1) * 0.5)[:, None] + x @ np.ones((8, 1), "f4"),
    "partial moments": lambda x: (x - x.mean(axis=0)) / x.std(axis=0) @ x.T,
    "places": lambda x: (x * 2).argmax(axis=0) + x @ np.ones((8, 8), "f4"),
}


@pytest.mark.parametrize("rows", [3, 4, 7, 21, 20])
@pytest.mark.parametrize("case", PROGRAMS)
def test_blocks_of_a_rank_in_batches(case: str, rows: int, batches: list[int]) -> None:
    with dgpu.enable(local_ranks=2, when="always", on_error="raise"):
        found = PROGRAMS[case](da.from_array(A, chunks=(rows, 8))).compute()
    wanted = PROGRAMS[case](A.astype("f8"))
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)
    assert batches or rows >= 20  # then most ranks have one block
    assert max(batches, default=0) <= Batching.batch
    if rows == 3:  # each rank has at least three of seven blocks
        assert max(batches) == Batching.batch
