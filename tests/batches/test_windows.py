"""Windows between a client and workers, in one process."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from dask_dgpu.batches.windows import ring, worker
from dask_dgpu.batches.windows.ring import (
    SLOTS,
    Kind,
    Place,
    StoppedError,
    Window,
    as_piece,
    opened,
    pieces,
)
from dask_dgpu.batches.windows.worker import Mapped, Windows
from tests.support.profiles import examples

SLOT = 64


@given(
    array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=7),
    st.sampled_from(["u1", "f4", "f8", "c16"]),
    st.integers(1, 300),
    st.booleans(),
)
def test_pieces_are_all_bytes_in_order(
    shape: tuple[int, ...], dtype: str, most: int, transposed: bool
) -> None:
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    x = x.T if transposed else x
    found = b""
    for index in pieces(x.shape, x.itemsize, most):
        piece = x[index]
        assert isinstance(piece, np.ndarray)
        assert piece.nbytes <= max(most, x.itemsize)
        assert np.shares_memory(piece, x) or not piece.size
        found += piece.tobytes()
    assert found == x.tobytes()


@pytest.fixture
def window() -> Iterator[Window]:
    window = Window(SLOT)
    yield window
    window.close()


@given(array_shapes(max_dims=3, max_side=20), st.sampled_from(["u1", "f8", "c16"]), st.booleans())
def test_blocks_go_both_ways(shape: tuple[int, ...], dtype: str, transposed: bool) -> None:
    x = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    x = x.T if transposed else x
    window, kind = Window(SLOT), Kind(x.shape, x.dtype)
    mapped = Mapped(window.place, on_gpu=False)
    with ThreadPoolExecutor(1) as executor:
        arriving = executor.submit(mapped.take, kind, False, count())
        for at, index in enumerate(kind.pieces(SLOT)):
            part = x[index]
            window.ring.fill(at, lambda slot, of=part: np.copyto(as_piece(slot, of), of))
        block = arriving.result()
        np.testing.assert_array_equal(block, x)
        window.ring.restart()
        giving, back = executor.submit(mapped.give, block.T), np.empty_like(x.T, order="C")
        for at, index in enumerate(Kind(back.shape, back.dtype).pieces(SLOT)):
            part = back[index]
            window.ring.empty(at, lambda slot, to=part: np.copyto(to, as_piece(slot, to)))
        giving.result()
        np.testing.assert_array_equal(back, x.T)
    window.close()


@given(st.integers(1, SLOTS + 2), st.integers(1, SLOTS + 2), st.data())
@examples(25)
def test_threads_of_both_ends_share_pieces(
    filling: int, emptying: int, data: st.DataObject
) -> None:
    """A slow thread may have a piece while others go on to the next one of its slot."""
    times = st.lists(st.sampled_from([0, 0, 0.002]), min_size=2, max_size=2)
    naps = data.draw(st.lists(times, max_size=4 * SLOTS))
    numbers, window = range(len(naps)), Window(SLOT)
    found: dict[int, int] = {}

    def fill(number: int) -> None:
        def work(slot: Any) -> None:
            time.sleep(naps[number][0])
            slot[0] = number

        window.ring.fill(number, work)

    def empty(number: int) -> None:
        def work(slot: Any) -> None:
            time.sleep(naps[number][1])
            found[number] = int(slot[0])

        window.ring.empty(number, work)

    works: list[Any] = []
    with ThreadPoolExecutor(filling + emptying) as threads:
        for end, count in ((fill, filling), (empty, emptying)):
            shares = [numbers[first::count] for first in range(count)]
            works += [threads.submit(lambda of, do=end: [*map(do, of)], each) for each in shares]
        for work in works:
            work.result()
    assert found == {number: number for number in numbers}
    window.close()


def test_neither_end_waits_for_one_that_has_stopped(
    window: Window, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped, kind = Mapped(window.place, on_gpu=False), Kind((100,), np.dtype(float))
    with ThreadPoolExecutor(1) as executor:
        arriving = executor.submit(mapped.take, kind, False, count())
        window.ring.stop()
        with pytest.raises(StoppedError, match="has stopped"):
            arriving.result(5)
        window.ring.restart()
        giving = executor.submit(mapped.give, np.zeros(100))  # more than the slots hold
        window.ring.stop()
        with pytest.raises(StoppedError, match="has stopped"):
            giving.result(5)
        window.ring.restart()
        window.ring.fill(0, lambda slot: None)
        monkeypatch.setattr(ring, "PATIENCE", 0.1)
        with pytest.raises(StoppedError, match="has stopped"):
            window.ring.fill(0, lambda slot: None)


def test_nothing_else_is_opened(tmp_path: Path, window: Window) -> None:
    with pytest.raises(OSError, match="of another process"):
        opened(replace(window.place, token=bytes(16)))
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(1000))
    file = os.open(secret, os.O_RDWR)
    with pytest.raises(OSError, match="expected a window"):
        opened(Place(f"/proc/{os.getpid()}/fd/{file}", bytes(16), SLOT))
    os.close(file)
    with pytest.raises(OSError, match="No such file"):
        opened(replace(window.place, path="/proc/1234567890/fd/3"))


def test_no_window_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError("no space left")

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="no space left"):
        Window(SLOT)
    assert len(os.listdir("/proc/self/fd")) == before
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(OSError, match="expected memfd_create"):
        Window(SLOT)


class Worker:
    """What functions need of one."""

    def __init__(self) -> None:
        self.extensions: dict[str, Any] = {}


def test_a_worker_lets_go_of_a_window_that_its_client_no_longer_has(
    window: Window, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of one that is not used for some time, while a batch is computed."""
    monkeypatch.setattr(worker, "LOOK", 0.1)
    at: Any = Worker()

    async def used() -> None:
        gone = Window(SLOT)
        for each in (window, gone):
            assert await worker.opened(each.place, False, dask_worker=at)
        windows: Windows = at.extensions[worker.EXTENSION]
        await asyncio.sleep(0.5)
        assert list(windows.mapped) == [window.place, gone.place]
        mapped = windows.mapped[gone.place]
        gone.close()
        while gone.place in windows.mapped:
            await asyncio.sleep(0.05)
        with pytest.raises(StoppedError, match="has stopped"):
            mapped.give(np.zeros(100))
        assert list(windows.mapped) == [window.place]
        windows.close()
        with pytest.raises(StoppedError, match="has let go"):
            await windows.use(window.place, lambda mapped: None)

    asyncio.run(used())


def test_a_window_is_closed_once_nothing_goes_through_it(window: Window) -> None:
    at: Any = Worker()

    async def closed() -> None:
        await worker.opened(window.place, False, dask_worker=at)
        kinds = [("key", Kind((3,), np.dtype(float)))]
        taking = asyncio.ensure_future(worker.taken(window.place, kinds, False, dask_worker=at))
        await asyncio.sleep(0.1)
        await worker.closed(window.place, dask_worker=at)
        with pytest.raises(StoppedError):
            await taking
        await worker.closed(window.place, dask_worker=at)

    asyncio.run(closed())


def test_a_window_of_another_host_is_not_opened() -> None:
    place, at = Place("/proc/1234567890/fd/3", bytes(16), SLOT), Worker()
    assert not asyncio.run(worker.opened(place, False, dask_worker=at))  # type: ignore[arg-type]
