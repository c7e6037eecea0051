"""An ``out`` that shares elements with an operand is refused, whatever holds them."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import dask.array as da
import h5py
import numpy as np
import pytest
import zarr

import dask_dgpu as dgpu
from dask_dgpu.batches import extents
from dask_dgpu.batches.overlaps import overlap
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


def again(array: np.memmap[Any, Any], rows: int = 40, first: int = 0) -> np.memmap[Any, Any]:
    """Map some rows of the same file once more."""
    offset = array.offset + array.strides[0] * first
    return np.memmap(array.filename, "f8", "r+", offset=offset, shape=(rows, 30))


@pytest.mark.parametrize(
    "of",
    [
        lambda x: (x, again(x)),
        lambda x: (np.asarray(x), again(x)),
        lambda x: (x, np.asarray(again(x)[...])),
    ],
    ids=["maps", "view and map", "map and view"],
)
def test_two_maps_of_a_file(mapped: Any, of: Callable[[Any], Pair]) -> None:
    assert_refused(*of(mapped))


def test_dasks_copy_of_an_array_is_no_overlap(mapped: Any) -> None:
    dgpu.run("exp", da.from_array(mapped, chunks=9), out=mapped)
    np.testing.assert_allclose(mapped, np.exp(VALUES), rtol=1e-14)


def test_a_link_to_the_file(mapped: Any, tmp_path: Path) -> None:
    (tmp_path / "link").hardlink_to(mapped.filename)
    assert_refused(mapped, np.memmap(tmp_path / "link", "f8", "r", offset=4096, shape=(40, 30)))


def test_rows_of_a_file_that_overlap(mapped: Any) -> None:
    with pytest.raises(ValueError, match="out not to share memory"):
        dgpu.run("exp", again(mapped, 20), out=np.asarray(again(mapped, 20, first=19)))


def test_other_rows_of_a_file(mapped: Any) -> None:
    dgpu.run("exp", again(mapped, 20), out=np.asarray(again(mapped, 20, first=20)))
    np.testing.assert_allclose(mapped[20:], np.exp(VALUES[:20]), rtol=1e-14)
    np.testing.assert_array_equal(mapped[:20], VALUES[:20])


def private(array: np.memmap[Any, Any]) -> np.memmap[Any, Any]:
    """Map the file once more; what is written to this map stays in it."""
    return np.memmap(array.filename, "f8", "c", offset=array.offset, shape=array.shape)


@pytest.fixture(params=[True, False], ids=["system tells maps", "system tells none"])
def told(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(extents, "MAPS", tmp_path / "none")


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize("of", [np.asarray, again, private], ids=["first", "again", "private"])
def test_a_private_map_changes_no_other(mapped: Any, of: Callable[[Any], Any]) -> None:
    out = private(mapped)
    dgpu.run("exp", of(mapped), out=out)
    np.testing.assert_allclose(out, np.exp(VALUES), rtol=1e-14)
    np.testing.assert_array_equal(mapped, VALUES)


@pytest.mark.usefixtures("told")
def test_a_private_map_shows_what_others_write(mapped: Any) -> None:
    shown = private(mapped)
    assert_refused(mapped, shown)
    shown[0, 0] = 1  # one page of it is a copy now
    with pytest.raises(ValueError, match="out not to share memory"):
        dgpu.run("exp", np.asarray(shown), out=mapped)
    with pytest.raises(ValueError, match=r"out\[1\] not to share memory with out\[0\]"):
        dgpu.run_many("exp", [(VALUES,)] * 2, out=[shown, mapped])


@pytest.mark.usefixtures("told")
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
        lambda x: (x, da.from_zarr(x)),
        lambda x: (x, da.from_zarr(str(x.store.root)).rechunk(7)),
    ],
    ids=["itself", "opened again", "graph", "graph of its path"],
)
def test_an_array_of_zarr(stored: Any, of: Callable[[Any], Pair]) -> None:
    assert_refused(*of(stored))


def test_arrays_of_zarr_with_the_same_fill_value() -> None:
    x, out = (zarr.create_array({}, shape=(4,), dtype=bool, chunks=2) for _ in range(2))
    assert x.fill_value is out.fill_value
    dgpu.run("logical_not", x, out=out)
    np.testing.assert_array_equal(out[:], True)


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
        lambda file: (file["x"], da.from_array(file["x"], chunks=9)),
    ],
    ids=["handles", "opened again", "graph"],
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


def test_many_calls_are_compared_quickly() -> None:
    x, outs = np.ones((2000, 3)), np.empty((2000, 3))
    written = {f"out[{at}]": each for at, each in enumerate(outs)}
    read = {f"calls[{at}][0]": each for at, each in enumerate(x)}
    assert overlap(written, read) is None
    assert overlap(written, read | {"calls[7][1]": outs[1999, 2:]}) == ("out[1999]", "calls[7][1]")


@pytest.mark.parametrize(
    "of",
    [
        lambda x: (x, np.frombuffer(memory_of(x), "f8", 1200, 4096).reshape(40, 30)),
        lambda x: (np.ndarray((40, 30), "f8", memory_of(x), 4096), x),
        lambda x: (memory_of(x), memory_of(x)),
    ],
    ids=["buffer of another map", "array in another map", "two maps"],
)
def test_memory_of_a_file_without_its_name(mapped: Any, of: Callable[[Any], Pair]) -> None:
    out, operand = (
        each if isinstance(each, np.ndarray) else np.ndarray((40, 30), "f8", each, 4096)
        for each in of(mapped)
    )
    assert_refused(out, operand)


def memory_of(array: np.memmap[Any, Any]) -> mmap.mmap:
    """Map the whole file once more."""
    with Path(str(array.filename)).open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def test_a_system_that_does_not_tell_maps(
    mapped: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extents, "MAPS", tmp_path / "none")
    assert_refused(mapped, again(mapped))
    dgpu.run("exp", again(mapped, 20), out=np.asarray(again(mapped, 20, first=20)))


def test_shared_memory_of_two_names() -> None:
    memory = shared_memory.SharedMemory(create=True, size=VALUES.nbytes)
    same = shared_memory.SharedMemory(memory.name)
    try:
        first, second = (np.ndarray(VALUES.shape, "f8", each.buf) for each in (memory, same))
        first[...] = VALUES
        assert not np.shares_memory(first, second)
        assert_refused(first, second)
        del first, second
    finally:
        same.close()
        memory.close()
        memory.unlink()


@pytest.mark.parametrize(
    "of",
    [
        lambda x: (x[:, :15], x[:, 15:]),
        lambda x: (x[::2], x[1::2]),
        lambda x: (x.view([("a", "f8"), ("b", "f8")])["a"], x.view("c16").imag),
        lambda x: (x.view("c16").real, x.view("c16").imag),
    ],
    ids=["columns", "every other row", "fields", "real and imaginary parts"],
)
@pytest.mark.parametrize("in_file", [False, True])
def test_apart_though_interleaved(mapped: Any, of: Callable[[Any], Pair], in_file: bool) -> None:
    operand, out = of(mapped if in_file else VALUES.copy())
    other, _ = of(again(mapped) if in_file else VALUES.copy())
    expected = np.exp(operand)
    dgpu.run("exp", other, out=out)
    np.testing.assert_allclose(out, expected, rtol=1e-14)
    with pytest.raises(ValueError, match="not to share memory"):
        dgpu.run("exp", operand[:4], out=np.asarray(operand)[3:7])


def test_arrays_that_are_hard_to_compare_are_refused() -> None:
    memory = np.zeros(40_000)
    strided = np.lib.stride_tricks.as_strided
    one = strided(memory, (9, 10, 11), (8 * 331, 8 * 83, 8 * 17))
    other = strided(memory[1:], (9, 10, 11), (8 * 330, 8 * 79, 8 * 19))
    assert overlap({"out": one}, {"x": other}) == ("out", "x")


def test_two_handles_in_one_mapping() -> None:
    store: dict[str, Any] = {}
    group = zarr.create_group(store)
    x, y = (group.create_array(name, shape=VALUES.shape, dtype="f8") for name in "xy")
    x[...] = VALUES
    assert_refused(x, zarr.open_array(store, path="x"))
    assert_refused(zarr.open_array(zarr.storage.LoggingStore(x.store), path="x"), x)
    dgpu.run("exp", x, out=y)
    np.testing.assert_allclose(y[...], np.exp(VALUES), rtol=1e-14)


@pytest.mark.parametrize("other_file", [False, True])
def test_a_virtual_dataset(file: h5py.File, tmp_path: Path, other_file: bool) -> None:
    layout = h5py.VirtualLayout(VALUES.shape, "f8")
    layout[:20] = h5py.VirtualSource(file["x"])[:20]
    layout[20:] = h5py.VirtualSource(file["x"])[20:]
    with h5py.File(tmp_path / "v.h5", "w") if other_file else nullcontext(file) as virtual:
        shown = virtual.create_virtual_dataset("v", layout)
        file.flush()
        assert_refused(shown, file["x"])
        assert_refused(file["x"], shown)
        dgpu.run("exp", shown, out=file["y"])
        np.testing.assert_allclose(file["y"][...], np.exp(VALUES), rtol=1e-14)


@pytest.mark.parametrize("name", ["x", "/x", "hard", "soft"])
@pytest.mark.parametrize("nested", [False, True])
def test_a_virtual_dataset_by_any_name(
    file: h5py.File, tmp_path: Path, name: str, nested: bool
) -> None:
    file["hard"], file["soft"] = file["x"], h5py.SoftLink("/x")
    with h5py.File(tmp_path / "v.h5", "w") as first, h5py.File(tmp_path / "w.h5", "w") as second:
        shown = view_of(first, "x.h5", name)
        shown = view_of(second, "v.h5", "v") if nested else shown
        for each in (file, first):
            each.flush()
        assert_refused(shown, file["x"])
        assert_refused(file["x"], shown)
        dgpu.run("exp", shown, out=file["y"])
        np.testing.assert_allclose(file["y"][...], np.exp(VALUES), rtol=1e-14)


def view_of(file: h5py.File, source: str, name: str) -> Any:
    """Create a virtual dataset that shows one of another file."""
    layout = h5py.VirtualLayout(VALUES.shape, "f8")
    layout[...] = h5py.VirtualSource(source, name, VALUES.shape)
    return file.create_virtual_dataset("v", layout)


def test_a_virtual_dataset_without_its_sources(file: h5py.File, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "v.h5", "w") as virtual:
        shown = view_of(virtual, "none.h5", "x")
        dgpu.run("exp", shown, out=file["y"])
    np.testing.assert_array_equal(file["y"][...], 1)


def test_arguments_that_are_no_operands() -> None:
    out = VALUES.copy()
    for op, args, options in (
        ("multiply", (out[0, 0:1].reshape(()),), {}),
        (lambda x, tables: x + tables[0][0, 0], ([out],), {}),
        ("stencil", (), {"kernel": out[:3, :3]}),
    ):
        with pytest.raises(ValueError, match=r"out not to share memory with (arrays\[1\]|kernel)"):
            dgpu.run(op, VALUES, *args, out=out, **options)
    with pytest.raises(ValueError, match=r"out\[0\] not to share memory with calls\[0\]\[1\]"):
        dgpu.run_many("multiply", [(VALUES, out[0, 0:1].reshape(()))], out=[out])


class InSlots(Dataset):
    """The same, with the values in a slot."""

    __slots__ = ("values",)


@pytest.mark.parametrize("kind", [Dataset, InSlots])
def test_an_array_within_an_operand(kind: type[Dataset]) -> None:
    out = VALUES.copy()
    assert_refused(out, kind(out))
    assert_refused(kind(out), out)
