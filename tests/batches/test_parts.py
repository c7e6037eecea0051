"""Parts of zarr and HDF5 arrays: values, and the memory that reads and writes take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_dgpu.batches.stored import WRITTEN, bytes_beside, read, writable
from tests.batches.test_stored import LAYOUTS, OBJECTS, X, stored
from tests.support.memory import assert_peak

REGIONS = [np.s_[0:1000, 0:500], np.s_[37:737, 0:500], np.s_[0:1000, 77:300], np.s_[400:401, 3:4]]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_reads_stay_within_their_bytes(layout: str, tmp_path: Path) -> None:
    array = stored(layout, tmp_path)
    for region in REGIONS:
        part = X[region]
        np.testing.assert_array_equal(read(array, region, X.dtype), part)
        beside = bytes_beside(array, part.shape, X.dtype)
        assert_peak(lambda at=region: read(array, at, X.dtype), part.nbytes + beside + OBJECTS)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_writes_take_few_chunks(layout: str, tmp_path: Path) -> None:
    array, expected = stored(layout, tmp_path), X.copy()
    unit = np.prod(LAYOUTS[layout].get("shards", array.chunks)) * 8
    for region in REGIONS:
        block = np.array(-X[region])
        expected[region] = block
        most = OBJECTS + (WRITTEN + 2) * max(unit, block.nbytes / 16 / WRITTEN)  # freed late
        assert_peak(lambda at=region, new=block: writable(array).__setitem__(at, new), most)
        np.testing.assert_array_equal(array[...], expected)


@given(st.data())
@settings(max_examples=50)
def test_any_region_of_any_chunks(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(0, 13), min_size=0, max_size=3).map(tuple))
    chunks = tuple(data.draw(st.integers(1, 7)) for _ in shape)
    x = np.arange(np.prod(shape, dtype=int), dtype="f4").reshape(shape)
    array = zarr.create_array({}, shape=shape, chunks=chunks, dtype="f4")
    ends = [sorted(data.draw(st.tuples(*[st.integers(0, n)] * 2))) for n in shape]
    region = tuple(slice(*each) for each in ends)
    writable(array)[tuple(slice(0, n) for n in shape)] = x
    np.testing.assert_array_equal(array[...], x)
    found = read(array, region, np.dtype("f4"))
    assert np.shape(found) == x[region].shape
    np.testing.assert_array_equal(found, x[region])
    writable(array)[region] = -x[region]
    x[region] *= -1
    np.testing.assert_array_equal(array[...], x)


def test_large_chunks_are_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    array = zarr.create_array({}, shape=X.shape, chunks=(300, 200), dtype="f8")
    reads: list[Any] = []
    get = zarr.Array.__getitem__

    def counted(self: Any, region: Any) -> Any:
        reads.append(region)
        return get(self, region)

    monkeypatch.setattr(zarr.Array, "__getitem__", counted)
    read(array, np.s_[100:700, 100:500], X.dtype)
    rows = slice(100, 300), slice(300, 600), slice(600, 700)
    columns = slice(100, 200), slice(200, 400), slice(400, 500)
    assert reads == [(row, column) for row in rows for column in columns]
    with zarr.config.set({"async.concurrency": 1}):  # two chunks are less than the part
        read(array, np.s_[100:700, 100:500], X.dtype)
    assert len(reads) == 10


def test_zarr_without_a_limit() -> None:
    array = zarr.create_array({}, shape=X.shape, chunks=(10, 10), dtype="f8")
    with zarr.config.set({"async.concurrency": None}):
        assert bytes_beside(array, X.shape, X.dtype) <= X.nbytes
        np.testing.assert_array_equal(read(array, REGIONS[1], X.dtype), np.zeros((700, 500)))


def test_a_chunk_of_hdf5_counts(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        whole = file.create_dataset("whole", data=X)
        chunked = file.create_dataset("chunked", data=X, chunks=(100, 100), compression="gzip")
        assert bytes_beside(whole, (50, 50), X.dtype) == 0
        assert bytes_beside(chunked, (50, 50), X.dtype) == 2 * 100 * 100 * 8
        assert bytes_beside(chunked, (0, 50), X.dtype) == 0


def test_other_arrays_take_nothing_but_casts() -> None:
    assert bytes_beside(X, (50, 50), X.dtype) == 0
    assert bytes_beside(X.astype(">f8"), (50, 50), X.dtype) == 50 * 50 * 8
