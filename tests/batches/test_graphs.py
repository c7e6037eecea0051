"""Dask arrays as operands: what they only read, and plans against peaks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr

import dask_dgpu as dgpu
from tests.batches import test_stored
from tests.batches.test_plan import limits
from tests.batches.test_stored import OBJECTS, OPERATIONS, X, assert_planned, operands
from tests.support.memory import assert_peak, bounded


@pytest.fixture
def stored(tmp_path: Path) -> Any:
    return test_stored.stored("rows", tmp_path)


def test_a_lock_is_held_for_each_read(stored: Any) -> None:
    class Lock:
        count = 0

        def acquire(self) -> None:
            self.count += 1

        def release(self) -> None:
            pass

    lock = Lock()
    x = da.from_array(stored, chunks=(125, 500), lock=lock)
    np.testing.assert_array_equal(dgpu.run("exp", x), np.exp(X))
    assert lock.count == 8


@pytest.mark.parametrize("limit", [6 << 20, 100 << 20])
@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize(
    "graph",
    [
        lambda z: da.from_zarr(z),
        lambda z: da.from_zarr(z) * 2,
        lambda z: da.from_array(X, chunks=(70, 500)).map_blocks(lambda block: block + 1),
        lambda z: da.from_array(X, chunks=(250, 100)).rechunk((100, 250)),
        lambda z: da.from_array(X, chunks=(100, 100)),
    ],
    ids=["read", "computed", "user's", "rechunked", "in memory"],
)
def test_plans_hold(op: str, graph: Callable[[Any], Any], limit: int, stored: Any) -> None:
    x = graph(stored)
    with bounded(limit):
        plan = dgpu.plan(op, *operands(op, x))
        if not plan.feasible:
            (advised,) = limits(plan.advice).values()
    with bounded(limit if plan.feasible else advised):
        assert_planned(dgpu.plan(op, *operands(op, x)), op, x, x.compute())


@pytest.mark.parametrize("op", [lambda x: x + 1, lambda x: (x * 2).sum(axis=0)])
@pytest.mark.parametrize("chunks", [(125, 500), (1000, 70)])
def test_plans_of_functions_count_what_graphs_read(
    op: Callable[[Any], Any], chunks: tuple[int, int], tmp_path: Path
) -> None:
    array = zarr.create_array(tmp_path / "y", shape=X.shape, chunks=chunks, dtype="f8")
    array[...] = X
    x = da.from_zarr(array)
    out = np.empty_like(op(X))
    plan = dgpu.plan(op, x)
    assert_peak(lambda: dgpu.run(op, x, out=out, progress=False), 1.15 * plan.peak_bytes + OBJECTS)
    np.testing.assert_allclose(out, op(X), rtol=1e-12)
