"""Copying many pieces: on the host, as the table of the kernel, and by the kernel."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from functools import partial
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.kernels.device import HostDevice
from dask_dgpu.kernels.pack import (
    Arrays,
    Described,
    InArrays,
    InMessage,
    Pieces,
    copy_pieces,
)
from dask_dgpu.kernels.pack.descriptors import (
    LENGTHS,
    MAX_NDIM,
    NDIM,
    SOURCE,
    SOURCE_STRIDES,
    TARGET,
    TARGET_STRIDES,
    TILE,
    WIDTH,
    WORDS,
    Table,
    describe,
)
from tests.support.profiles import examples

Array = Any

DTYPES = ["bool", "int8", "uint16", "float16", "int32", "float64", "complex64", "complex128"]


def interpret(table: Table) -> None:
    """Do what the kernel does, word by word, in host memory."""
    for row, first, last in zip(
        table.rows.tolist(), table.tiles[:-1], table.tiles[1:], strict=True
    ):
        assert last - first == -(-row[WORDS] // TILE) > 0
        ndim = row[NDIM]
        lengths = row[LENGTHS : LENGTHS + ndim]
        assert prod(lengths) == row[WORDS]
        for word in range(row[WORDS]):
            rest, to, source = word, row[TARGET], row[SOURCE]
            for axis, length in enumerate(lengths):
                rest, along = divmod(rest, length)
                to += along * row[TARGET_STRIDES + axis]
                source += along * row[SOURCE_STRIDES + axis]
            assert to % row[WIDTH] == source % row[WIDTH] == 0
            ctypes.memmove(to, source, row[WIDTH])


def pieces_of(pairs: Iterable[tuple[Array, Array]]) -> Pieces:
    """Copy the second of each pair of arrays to the first, of the same shape."""
    targets, sources = zip(*pairs, strict=True)
    which = np.arange(len(targets))
    start = np.zeros((len(targets), targets[0].ndim), np.int64)
    shapes = np.array([target.shape for target in targets], np.int64).reshape(start.shape)
    places = (InArrays(Arrays(arrays), which, start) for arrays in (targets, sources))
    return Pieces(shapes, *places)


def by_table(*batches: Pieces) -> None:
    table = describe(batches)
    assert table is not None
    interpret(table)


ON_HOST = [partial(copy_pieces, HostDevice()), by_table]


def values(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)


@st.composite
def views(draw: st.DrawFn, shape: tuple[int, ...], dtype: str) -> Array:
    """An array of this shape somewhere in a larger one: gaps, backwards, axes in any order."""
    axes = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from([1, 1, 1, 2, -1, -3])) for _ in shape]
    before = [draw(st.integers(0, 2)) for _ in shape]
    base = [abs(s) * n + b + 1 for n, s, b in zip(shape, steps, before, strict=True)]
    memory = values(tuple(base[axis] for axis in axes), dtype, draw(st.integers(0, 9)))
    whole = memory.transpose(np.argsort(axes)) if shape else memory
    spans = (slice(b, b + abs(s) * n, abs(s)) for n, s, b in zip(shape, steps, before, strict=True))
    backwards = (slice(None, None, -1 if s < 0 else 1) for s in steps)
    return whole[..., *spans][..., *backwards]


@st.composite
def pairs(draw: st.DrawFn) -> list[tuple[Array, Array]]:
    dtype = draw(st.sampled_from(DTYPES))
    ndim = draw(st.integers(0, 4))
    found = []
    for _ in range(draw(st.integers(1, 4))):
        shape = tuple(draw(st.lists(st.integers(0, 5), min_size=ndim, max_size=ndim)))
        found.append((draw(views(shape, dtype)), draw(views(shape, dtype))))
    return found


@pytest.mark.parametrize("copy", ON_HOST)
@examples(200)
@given(st.lists(pairs(), min_size=1, max_size=2))
def test_any_views(copy: Callable[..., None], found: list[list[tuple[Array, Array]]]) -> None:
    found = [batch for batch in found if batch[0][0].dtype == found[0][0][0].dtype]
    cases = [pair for batch in found for pair in batch]
    memory = [(memory_of(target), memory_of(target).copy()) for target, _ in cases]
    old = [target.copy() for target, _ in cases]
    copy(*map(pieces_of, found))
    for (target, source), before in zip(cases, old, strict=True):
        np.testing.assert_array_equal(target, source, strict=True)
        target[...] = before
    for now, before in memory:  # and nothing else was written
        np.testing.assert_array_equal(now, before)


def memory_of(view: Array) -> Array:
    return view if view.base is None else view.base


@pytest.mark.parametrize("copy", ON_HOST)
@pytest.mark.parametrize("dtype", DTYPES)
def test_into_a_message_and_out_of_it(copy: Callable[..., None], dtype: str) -> None:
    blocks = [values((4, 6, 5), dtype, 0), values((5, 6, 4), dtype, 1).T]
    made = [np.zeros((6, 7, 6), dtype) for _ in blocks]
    message = np.zeros(100, dtype)
    shapes = np.array([(2, 3, 5), (1, 6, 1), (0, 2, 2), (4, 1, 2)])
    which = np.array([0, 1, 1, 1])
    start = np.array([(1, 2, 0), (3, 0, 4), (0, 0, 0), (0, 5, 2)])
    at = np.array([50, 3, 0, 12])
    pieces = [
        block[tuple(map(slice, lo, lo + shape))]
        for block, lo, shape in zip([blocks[k] for k in which], start, shapes, strict=True)
    ]
    copy(Pieces(shapes, InMessage(message, at), InArrays(Arrays(blocks), which, start)))
    expected = np.zeros_like(message)
    for first, piece in zip(at, pieces, strict=True):
        expected[first : first + piece.size] = piece.ravel()
    np.testing.assert_array_equal(message, expected)
    copy(Pieces(shapes, InArrays(Arrays(made), which, start), InMessage(message, at)))
    for k, lo, shape, piece in zip(which, start, shapes, pieces, strict=True):
        np.testing.assert_array_equal(made[k][tuple(map(slice, lo, lo + shape))], piece)
    assert sum(map(np.count_nonzero, made)) == np.count_nonzero(message)


def row(target: Array, source: Array) -> Any:
    """The one row of the table for one piece: words, their width, lengths."""
    table = describe((pieces_of([(target, source)]),))
    assert table is not None
    ((found),) = table.rows
    return found[WORDS], found[WIDTH], tuple(found[LENGTHS : LENGTHS + found[NDIM]].tolist())


def aligned(shape: tuple[int, ...], dtype: str) -> Array:
    """An array that starts at a multiple of 64 bytes, as they all do on a GPU."""
    nbytes = prod(shape) * np.dtype(dtype).itemsize
    memory = np.zeros(nbytes + 64, np.uint8)
    first = -memory.ctypes.data % 64
    return memory[first : first + nbytes].view(dtype).reshape(shape)


def test_axes_are_merged_and_words_are_wide() -> None:
    a, b = aligned((5, 4, 8), "float32"), aligned((5, 4, 8), "float32")
    assert row(a, b) == (40, 16, (40,))  # all contiguous
    assert row(a.transpose(2, 0, 1), b.transpose(2, 0, 1)) == (40, 16, (40,))  # on both sides
    wide = aligned((5, 4, 16), "float32")
    assert row(a, wide[:, :, 4:12]) == (40, 16, (2, 20))  # rows with gaps between
    assert row(a, wide[:, :, 2:10]) == (80, 8, (4, 20))  # half as well aligned
    assert row(a, wide[:, :, 1:9]) == (160, 4, (8, 20))
    assert row(a, wide[:, ::-1, 4:12]) == (40, 16, (2, 4, 5))
    assert row(a, wide[:, :, ::2]) == (160, 4, (160,))  # every second, up to the end
    assert row(a[:, :, :1], b[:, :, :1]) == (20, 4, (20,))
    assert row(a[:1, :1, :1], b[:1, :1, :1]) == (1, 4, (1,))
    assert row(aligned((7,), "int8"), aligned((7,), "int8")) == (7, 1, (7,))
    assert row(aligned((), "complex128"), aligned((), "complex128")) == (1, 16, (1,))


def test_the_target_is_written_along_its_memory() -> None:
    a, b = aligned((6, 8), "float64"), aligned((8, 6), "float64")
    assert row(a, b.T) == (48, 8, (8, 6))
    assert row(a.T, b) == (48, 8, (8, 6))


def test_large_pieces_have_several_tiles() -> None:
    n = 16 * TILE
    a, b = aligned((2 * n + 16,), "uint8"), aligned((2 * n + 16,), "uint8")
    table = describe((pieces_of([(a, b), (a[:0], b[:0]), (a[:n], b[:n])]),))
    assert table is not None
    assert table.tiles.tolist() == [0, 3, 4]


def test_nothing_to_copy() -> None:
    for batches in [(), (pieces_of([(np.empty((0, 3)), np.empty((0, 3)))]),)]:
        table = describe(batches)
        assert table is not None
        assert len(table.rows) == 0
        assert table.tiles.tolist() == [0]


def test_too_many_axes_are_left_to_others() -> None:
    shape = (3,) * (MAX_NDIM + 1)
    whole = np.empty((5,) * len(shape), np.int8)
    view = whole[tuple(slice(0, 5, 2) for _ in shape)]
    assert describe((pieces_of([(np.empty(shape, np.int8), view)]),)) is None
    assert describe((pieces_of([(np.empty(shape, np.int8), np.empty(shape, np.int8))]),))


def test_too_many_words_are_left_to_others() -> None:
    few, many = (
        np.lib.stride_tricks.as_strided(np.zeros(1, "i1"), (words,), (0,))
        for words in (2**31 - 1, 2**31)
    )
    assert describe((pieces_of([(few[::-1], few)]),)) is not None
    assert describe((pieces_of([(many[::-1], many)]),)) is None


def on_device(view: Array) -> tuple[Array, Array]:
    """The memory behind a NumPy view, copied to the GPU, and the same view of it there."""
    import cupy

    memory = memory_of(view)
    offset = view.__array_interface__["data"][0] - memory.ctypes.data
    there = cupy.asarray(memory.flatten(order="K"))
    return there, cupy.ndarray(view.shape, view.dtype, there.data + offset, view.strides)


def device_copy(*batches: list[tuple[Array, Array]]) -> None:
    """Copy on a GPU; nothing else than the pieces may change there."""
    import cupy

    from dask_dgpu.kernels.device.cuda import CudaDevice

    device = CudaDevice()
    there: list[list[tuple[Array, Array]]] = []
    expected = []
    for batch in batches:
        there.append([])
        for target, source in batch:
            memory, view = on_device(target)
            there[-1].append((view, on_device(source)[1]))
            target[...] = source
            expected.append((memory, memory_of(target).flatten(order="K")))
    device.begin()
    with device.transferring():
        copy_pieces(device, *map(pieces_of, there))
    device.synchronize()
    for now, wanted in expected:
        np.testing.assert_array_equal(cupy.asnumpy(now), wanted)


@pytest.mark.gpu
@examples(200)
@given(pairs())
def test_any_views_on_a_gpu(found: list[tuple[Array, Array]]) -> None:
    device_copy(found)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_shapes_of_many_tiles_on_a_gpu(dtype: str) -> None:
    a, b = values((300, 400), dtype, 0), values((400, 300), dtype, 1)
    device_copy(
        [(a[:, :200], b.T[:, 200:]), (a[:, 200:], b.T[:, :200])],
        [(values((3, 70, 81), dtype), values((3, 81, 70), dtype).transpose(0, 2, 1))],
        [(values((99991,), dtype), values((99991,), dtype, 2))],
    )


@pytest.mark.gpu
def test_more_launches_than_the_ring_has_tables() -> None:
    import cupy

    from dask_dgpu.kernels.device.cuda import CudaDevice

    device = CudaDevice()
    source = cupy.arange(4096 * 64, dtype=cupy.float32).reshape(64, 4096)
    made = [cupy.zeros_like(source) for _ in range(50)]
    device.begin()
    with device.transferring():
        for count, target in enumerate(made, start=1):
            copy_pieces(device, pieces_of([(target[k], source[k]) for k in range(count)]))
    device.synchronize()
    for count, target in enumerate(made, start=1):
        assert bool((target[:count] == source[:count]).all())
        assert not target[count:].any()


@pytest.mark.gpu
def test_more_axes_than_the_kernel_knows_on_a_gpu() -> None:
    shape = (3,) * (MAX_NDIM + 1)
    whole = values((5,) * len(shape), "int8")
    device_copy([(np.empty(shape, np.int8), whole[tuple(slice(0, 5, 2) for _ in shape)])])


def test_places_are_described_once() -> None:
    """Again the same pieces of other arrays: the same table, but for where they are."""
    described, shapes = Described(), np.array([[3, 4], [2, 4]])
    which, start = np.array([0, 1]), np.array([[0, 0], [1, 2]])

    def floats(*shape: int) -> Array:
        return aligned(shape, "float32")

    def pieces(*arrays: Array) -> Pieces:
        places = InArrays(Arrays(arrays), which, start)
        return Pieces(shapes, InMessage(floats(20), np.array([0, 12])), places, described)

    for arrays in (
        (floats(4, 4), floats(3, 6)),
        (floats(4, 4), floats(3, 6)),
        (floats(4, 8)[:, ::2], floats(3, 6)),  # other strides
        (floats(4, 4), floats(3, 7)[:, 1:]),  # no longer at a multiple of 16
    ):
        given = pieces(*arrays)
        table, alone = describe((given,)), describe((given._replace(described=None),))
        assert table is not None
        assert alone is not None
        np.testing.assert_array_equal(table.rows, alone.rows)
    last = described.last
    describe((pieces(floats(4, 4), floats(3, 7)[:, 1:]),))
    assert described.last is last
    describe((pieces(floats(4, 8)[:, ::2], floats(3, 6)),))
    assert described.last is not last
