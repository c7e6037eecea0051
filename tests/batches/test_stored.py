"""Parts of zarr and HDF5 arrays: values, and the memory that reads and writes take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

import dask_dgpu as dgpu
from tests.support.memory import assert_peak, bounded

X = np.random.default_rng(0).normal(size=(1000, 500))
READ = "chunks that are read"
OBJECTS = 1 << 20
"""Bytes of Python's objects for a read of 250 chunks."""
LAYOUTS: dict[str, dict[str, Any]] = {
    "rows": {"chunks": (125, 500)},
    "columns": {"chunks": (1000, 60)},
    "squares": {"chunks": (110, 90)},
    "small": {"chunks": (20, 100)},
    "one": {"chunks": (1000, 500)},
    "raw": {"chunks": (125, 500), "compressors": None},
    "shards": {"chunks": (50, 50), "shards": (250, 250)},
    "swapped": {"chunks": (110, 90), "dtype": ">f8"},
}


def stored(layout: str, path: Path) -> Any:
    array = zarr.create_array(path / "x", **{"shape": X.shape, "dtype": "f8"} | LAYOUTS[layout])
    array[...] = X
    return array


OPERATIONS: dict[str, Any] = {"exp": np.exp, "matmul": np.matmul, "sum": np.sum}


def operands(op: str, x: Any) -> tuple[Any, ...]:
    """Return what an operation of these is called with."""
    return (x, np.ones((500, 40))) if op == "matmul" else (x,)


def assert_planned(plan: dgpu.Plan, op: str, x: Any, values: Any) -> None:
    """Run a feasible operation of ``x``; raise unless the result and the peak are right."""
    assert plan.feasible
    args, expected = operands(op, x), OPERATIONS[op](*operands(op, values))
    out = np.empty_like(expected)
    most = 1.1 * plan.peak_bytes + OBJECTS
    assert_peak(lambda: dgpu.run(op, *args, out=out, progress=False), most)
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize("layout", ["rows", "columns", "small", "shards"])
def test_plans_count_the_chunks_that_are_read(op: str, layout: str, tmp_path: Path) -> None:
    array = stored(layout, tmp_path)
    with bounded(6 << 20):
        plan = dgpu.plan(op, *operands(op, array))
        assert READ in {part.name for part in plan.parts}
        assert_planned(plan, op, array, X)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_results_go_to_any_chunks(layout: str, tmp_path: Path) -> None:
    x = stored(layout, tmp_path)
    out = zarr.create_array(tmp_path / "out", **{"shape": X.shape, "dtype": "f8"} | LAYOUTS[layout])
    with bounded(10 << 20):
        assert dgpu.plan("exp", x).batches > 1
        dgpu.run("exp", x, out=out)
    np.testing.assert_allclose(out[...], np.exp(X), rtol=1e-14)


def test_as_many_chunks_count_as_zarr_decodes_at_a_time() -> None:
    x = zarr.create_array({}, shape=X.shape, chunks=(10, 10), dtype="f8")
    for count, counted in ((1, 1), (10, 10), (None, 5000)):
        with zarr.config.set({"async.concurrency": count}):
            (part,) = (part for part in dgpu.plan("exp", x).parts if part.name == READ)
            assert part.nbytes == 2 * counted * 100 * 8


def test_a_chunk_of_hdf5_counts(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        whole = file.create_dataset("whole", data=X)
        chunked = file.create_dataset("chunked", data=X, chunks=(100, 100), compression="gzip")
        assert READ not in {part.name for part in dgpu.plan("exp", whole).parts}
        (part,) = (part for part in dgpu.plan("exp", chunked).parts if part.name == READ)
        assert part.nbytes == 2 * 100 * 100 * 8
        np.testing.assert_allclose(dgpu.run("exp", chunked), np.exp(X), rtol=1e-14)
