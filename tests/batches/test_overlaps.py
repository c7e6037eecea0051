"""An ``out`` that may share memory with another argument is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import h5py
import numpy as np
import pytest
import zarr

import dask_dgpu as dgpu
from tests.batches.test_run import Dataset

VALUES = np.random.default_rng(0).random((40, 30))
Pair = tuple[Any, Any]


@pytest.fixture
def mapped(tmp_path: Path) -> np.memmap[Any, Any]:
    array = np.memmap(tmp_path / "x", "f8", "w+", offset=4096, shape=VALUES.shape)
    array[...] = VALUES
    return array


@pytest.fixture
def stored(tmp_path: Path) -> Any:
    array = zarr.create_array(tmp_path / "x.zarr", shape=VALUES.shape, dtype="f8", chunks=(10, 30))
    array[...] = VALUES
    return array


@pytest.fixture
def file(tmp_path: Path) -> Iterator[h5py.File]:
    with h5py.File(tmp_path / "x.h5", "w") as found:
        found["x"], found["y"] = VALUES, VALUES
        yield found


def assert_refused(out: Any, operand: Any) -> None:
    with pytest.raises(ValueError, match=r"out not to share memory with arrays\[0\]"):
        dgpu.run("exp", operand, out=out)
    values = out.values if isinstance(out, Dataset) else out[...]
    np.testing.assert_array_equal(values, VALUES)


def test_dasks_copy_of_an_array_is_no_overlap(mapped: Any) -> None:
    dgpu.run("exp", da.from_array(mapped, chunks=9), out=mapped)
    np.testing.assert_allclose(mapped, np.exp(VALUES), rtol=1e-14)


def test_other_rows_of_a_file(mapped: Any) -> None:
    dgpu.run("exp", mapped[:20], out=np.asarray(mapped)[20:])
    np.testing.assert_allclose(mapped[20:], np.exp(VALUES[:20]), rtol=1e-14)
    np.testing.assert_array_equal(mapped[:20], VALUES[:20])


def private(array: np.memmap[Any, Any]) -> np.memmap[Any, Any]:
    """Map the file once more; what is written to this map stays in it."""
    return np.memmap(array.filename, "f8", "c", offset=array.offset, shape=array.shape)


@pytest.mark.parametrize("of", [np.asarray, private], ids=["first", "private"])
def test_a_private_map_changes_no_other(mapped: Any, of: Callable[[Any], Any]) -> None:
    out = private(mapped)
    dgpu.run("exp", of(mapped), out=out)
    np.testing.assert_allclose(out, np.exp(VALUES), rtol=1e-14)
    np.testing.assert_array_equal(mapped, VALUES)


def test_two_views_of_a_private_map(mapped: Any) -> None:
    out = private(mapped)
    assert_refused(out, out[:])
    with pytest.raises(ValueError, match="out not to share memory"):
        dgpu.run("exp", np.asarray(out[:20]), out=out[19:39])


@pytest.mark.parametrize(
    "of",
    [
        lambda x: (x, x),
        lambda x: (x, zarr.open_array(x.store.root)),
    ],
    ids=["itself", "opened again"],
)
def test_an_array_of_zarr(stored: Any, of: Callable[[Any], Pair]) -> None:
    assert_refused(*of(stored))


def test_another_array_of_a_group(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "g.zarr")
    x, y = (group.create_array(name, shape=VALUES.shape, dtype="f8") for name in "xy")
    x[...] = VALUES
    dgpu.run("exp", x, out=y)
    np.testing.assert_allclose(y[...], np.exp(VALUES), rtol=1e-14)


@pytest.mark.parametrize(
    "of",
    [
        lambda file: (file["x"], file["x"]),
        lambda file: (file["x"], h5py.File(file.filename, "r+")["x"]),
    ],
    ids=["handles", "opened again"],
)
def test_two_handles_of_a_dataset(file: h5py.File, of: Callable[[Any], Pair]) -> None:
    assert_refused(*of(file))


def test_another_dataset_of_a_file(file: h5py.File) -> None:
    dgpu.run("exp", file["x"], out=file["y"])
    np.testing.assert_allclose(file["y"][...], np.exp(VALUES), rtol=1e-14)


def test_a_read_only_dataset_is_refused(file: h5py.File, tmp_path: Path) -> None:
    file.close()
    with (
        h5py.File(tmp_path / "x.h5", "r") as read_only,
        pytest.raises(ValueError, match="expected out to be writable, got a read-only array"),
    ):
        dgpu.run("exp", VALUES, out=read_only["x"])


def test_calls_do_not_write_what_others_use(stored: Any) -> None:
    x, y = VALUES.copy(), np.empty(VALUES.shape)
    opened = zarr.open_array(stored.store.root)
    for outs, calls, message in (
        ([y, y], [x, x], r"out\[1\] not to share memory with out\[0\]"),
        ([y[:30], y[29:]], [x[:30], x[:11]], r"out\[1\] not to share memory with out\[0\]"),
        ([y, x], [x, VALUES], r"out\[1\] not to share memory with calls\[0\]\[0\]"),
        ([y, stored], [opened, x], r"out\[1\] not to share memory with calls\[0\]\[0\]"),
    ):
        with pytest.raises(ValueError, match=message):
            dgpu.run_many("exp", [(each,) for each in calls], out=outs)
    dgpu.run_many("exp", [(x[:20],), (x[20:],)], out=[y[20:], y[:20]])
    np.testing.assert_allclose(np.roll(y, 20, axis=0), np.exp(x), rtol=1e-14)


def test_columns_of_one_array_may_share_memory() -> None:
    x = VALUES.copy()
    with pytest.raises(ValueError, match="not to share memory"):
        dgpu.run("exp", x[:, :15], out=x[:, 15:])


def test_two_handles_in_one_mapping() -> None:
    store: dict[str, Any] = {}
    group = zarr.create_group(store)
    x, y = (group.create_array(name, shape=VALUES.shape, dtype="f8") for name in "xy")
    x[...] = VALUES
    assert_refused(x, zarr.open_array(store, path="x"))
    dgpu.run("exp", x, out=y)
    np.testing.assert_allclose(y[...], np.exp(VALUES), rtol=1e-14)


def test_arguments_that_are_no_operands() -> None:
    out = VALUES.copy()
    for op, args, options in (
        ("multiply", (out[0, 0:1].reshape(()),), {}),
        (lambda x, table: x + table[0, 0], (out,), {}),
        ("stencil", (), {"kernel": out[:3, :3]}),
    ):
        with pytest.raises(ValueError, match=r"out not to share memory with (arrays\[1\]|kernel)"):
            dgpu.run(op, VALUES, *args, out=out, **options)
    with pytest.raises(ValueError, match=r"out\[0\] not to share memory with calls\[0\]\[1\]"):
        dgpu.run_many("multiply", [(VALUES, out[0, 0:1].reshape(()))], out=[out])


def test_an_object_that_is_its_own_operand() -> None:
    out = Dataset(VALUES.copy())
    assert_refused(out, out)
    dgpu.run("exp", Dataset(VALUES), out=out)
    np.testing.assert_allclose(out.values, np.exp(VALUES), rtol=1e-14)
