"""Windows between a client and workers, in one process."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from dask_dgpu.batches import ring
from dask_dgpu.batches import windows as worker
from dask_dgpu.batches.ring import (
    SLOTS,
    Place,
    StoppedError,
    Window,
    mapped,
    pieces,
)
from dask_dgpu.batches.windows import Mapped
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
    window = Window(SLOT)
    ours, theirs = window.ring, mapped(window.place)
    with ThreadPoolExecutor(1) as executor:
        for block in (x, x.T):
            found = np.empty(block.shape, block.dtype)
            arriving = executor.submit(theirs.move, [found], sends=False)
            ours.move([block], sends=True)
            arriving.result()
            np.testing.assert_array_equal(found, block)
            ours.restart()
    window.close()


@given(st.integers(1, SLOTS + 2), st.integers(1, SLOTS + 2), st.data())
@examples(25)
def test_threads_of_both_ends_share_pieces(
    filling: int, emptying: int, data: st.DataObject
) -> None:
    """A slow thread may have a piece while others go on to the next one of its slot."""
    times = st.lists(st.sampled_from([0, 0, 0.002]), min_size=2, max_size=2)
    naps = data.draw(st.lists(times, max_size=4 * SLOTS))
    window = Window(SLOT)
    sent = [np.full(SLOT, at, "u1") for at in range(len(naps))]
    found = [np.zeros_like(each) for each in sent]
    numbers = {each.ctypes.data: at for arrays in (sent, found) for at, each in enumerate(arrays)}

    def slowly(target: Any, source: Any, stream: Any) -> None:
        is_sent = source.ctypes.data in numbers
        number = numbers[(source if is_sent else target).ctypes.data]
        time.sleep(naps[number][int(is_sent)])
        np.copyto(target, source)

    works: list[Any] = []
    with ThreadPoolExecutor(filling + emptying) as threads, pytest.MonkeyPatch.context() as patch:
        patch.setattr(ring, "_copy", slowly)
        for arrays, count in ((sent, filling), (found, emptying)):
            move = partial(window.ring.move, arrays, sends=arrays is sent, step=count)
            works += [threads.submit(move, first=first) for first in range(count)]
        for work in works:
            work.result()
    for one, other in zip(sent, found, strict=True):
        np.testing.assert_array_equal(one, other)
    window.close()


def test_neither_end_waits_for_one_that_has_stopped(
    window: Window, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, block = mapped(window.place), np.zeros(100)  # more than the slots hold
    with ThreadPoolExecutor(1) as executor:
        for sends in (False, True):
            moving = executor.submit(there.move, [block], sends=sends)
            window.ring.stop()
            with pytest.raises(StoppedError, match="has stopped"):
                moving.result(5)
            window.ring.restart()
        moving = executor.submit(there.move, [block, None], sends=False)  # an error there
        with pytest.raises(StoppedError, match="has stopped"):
            window.ring.move([block, block], sends=True)
        with pytest.raises(AttributeError):
            moving.result(5)
        window.ring.restart()
        monkeypatch.setattr(ring, "PATIENCE", 0.1)
        with pytest.raises(StoppedError, match="has stopped"):
            window.ring.move([block], sends=True)


def test_nothing_else_is_opened(tmp_path: Path, window: Window) -> None:
    with pytest.raises(OSError, match="of another process"):
        mapped(replace(window.place, token=bytes(16)))
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(1000))
    file = os.open(secret, os.O_RDWR)
    with pytest.raises(OSError, match="expected a window"):
        mapped(Place(os.getpid(), file, bytes(16), SLOT))
    os.close(file)
    with pytest.raises(OSError, match="expected a window"):
        mapped(replace(window.place, process=1234567890))


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


CLIENT = f"""
from dask_dgpu.batches.ring import Window
window = Window({SLOT})
print(window.place, flush=True)
input()
"""


def test_a_worker_lets_go_of_windows_of_dead_clients(window: Window) -> None:
    at: Any = Worker()

    async def used() -> None:
        assert await worker.opened(window.place, False, dask_worker=at)
        with Popen([sys.executable, "-c", CLIENT], stdin=PIPE, stdout=PIPE, text=True) as client:
            assert client.stdout is not None
            theirs = eval(client.stdout.readline(), {"Place": Place})
            assert await worker.opened(theirs, False, dask_worker=at)
            windows: Mapped = at.extensions[worker.EXTENSION]
            there = windows[theirs]
            client.kill()
        while theirs in windows:
            await asyncio.sleep(0.01)
        assert list(windows) == [window.place]
        with pytest.raises(StoppedError, match="has stopped"):
            there.move([np.zeros(100)], sends=True)
        windows.close()
        with pytest.raises(StoppedError, match="has let go"):
            await worker.taken(window.place, [], False, dask_worker=at)

    asyncio.run(used())


def test_a_window_is_closed_once_nothing_goes_through_it(window: Window) -> None:
    at: Any = Worker()

    async def closed() -> None:
        await worker.opened(window.place, False, dask_worker=at)
        kinds = [("key", ((3,), np.dtype(float)))]
        taking = asyncio.ensure_future(worker.taken(window.place, kinds, False, dask_worker=at))
        await asyncio.sleep(0.1)
        await worker.closed(window.place, dask_worker=at)
        with pytest.raises(StoppedError):
            await taking
        await worker.closed(window.place, dask_worker=at)

    asyncio.run(closed())


def test_a_window_of_another_host_is_not_opened() -> None:
    place, at = Place(1234567890, 3, bytes(16), SLOT), Worker()
    assert not asyncio.run(worker.opened(place, False, dask_worker=at))  # type: ignore[arg-type]
