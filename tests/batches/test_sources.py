"""Dask arrays that only read a stored array."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import h5py
import pytest

from dask_dgpu.batches.graphs import source_of
from tests.batches import test_stored
from tests.batches.test_stored import X


@pytest.fixture
def stored(tmp_path: Path) -> Any:
    return test_stored.stored("rows", tmp_path)


def test_graphs_that_only_read(stored: Any, tmp_path: Path) -> None:
    assert source_of(da.from_zarr(stored)) is stored
    assert source_of(da.from_array(stored, chunks=(70, 90), inline_array=True)) is stored
    with h5py.File(tmp_path / "x.h5", "w") as file:
        dataset = file.create_dataset("x", data=X, chunks=(100, 100))
        assert source_of(da.from_array(dataset, fancy=False)) is dataset


@pytest.mark.parametrize(
    "graph",
    [
        lambda z: da.from_zarr(z) + 1,
        lambda z: da.from_zarr(z)[:-1],
        lambda z: da.from_zarr(z).rechunk(200),
        lambda z: da.from_array(z, lock=True),
        lambda z: da.from_array(X, chunks=100),
        lambda z: da.ones(X.shape, chunks=100),
        lambda z: da.from_zarr(z).persist(),
    ],
)
def test_other_graphs(graph: Callable[[Any], Any], stored: Any) -> None:
    assert source_of(graph(stored)) is None
