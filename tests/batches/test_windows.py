"""Windows between a client and workers, in one process."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from dask_dgpu.batches.windows import worker
from dask_dgpu.batches.windows.place import Place, Window, as_piece, pieces
from dask_dgpu.batches.windows.worker import Mapped, Windows, opened

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
    for start, piece in pieces(x, most):
        assert start == len(found)
        assert piece.nbytes <= max(most, x.itemsize)
        assert piece.base is not None or piece is x
        found += piece.tobytes()
    assert found == x.tobytes()


def test_both_ends_see_the_same_memory() -> None:
    window, x = Window(SLOT), np.arange(8.0)
    mapped = Mapped(window.place, on_gpu=False)
    np.copyto(as_piece(window.slots[1], x), x)
    block = mapped.begin("key", (2, 8), np.dtype(float))
    mapped.take(block, 64, 1, 64)
    np.testing.assert_array_equal(block[1], x)
    mapped.give(block, 64, 0, 64)
    np.testing.assert_array_equal(as_piece(window.slots[0], x), x)
    mapped.close()
    window.close()


def test_nothing_else_is_opened(tmp_path: Any) -> None:
    window = Window(SLOT)
    with pytest.raises(OSError, match="of another process"):
        Mapped(replace(window.place, token=bytes(16)), on_gpu=False)
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(1000))
    file = os.open(secret, os.O_RDWR)
    place = Place(f"/proc/{os.getpid()}/fd/{file}", bytes(16), SLOT)
    with pytest.raises(OSError, match="expected a window"):
        Mapped(place, on_gpu=False)
    os.close(file)
    window.close()
    with pytest.raises(OSError, match="No such file"):
        Mapped(window.place, on_gpu=False)


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


def test_a_worker_lets_go_of_a_window_that_nobody_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "IDLE", 0.2)
    window, at = Window(SLOT), Worker()

    async def used() -> None:
        assert await opened(window.place, False, dask_worker=at)  # type: ignore[arg-type]
        windows: Windows = at.extensions[worker.EXTENSION]
        for _ in range(5):
            await asyncio.sleep(0.1)
            assert windows.use(window.place).slots
        mapped = windows.use(window.place)
        mapped.begin("key", (3,), np.dtype(float))
        while windows.mapped:
            await asyncio.sleep(0.05)
        assert not mapped.slots
        assert not mapped.arriving

    asyncio.run(used())
    window.close()


def test_a_window_of_another_host_is_not_opened() -> None:
    place = Place("/proc/1234567890/fd/3", bytes(16), SLOT)
    assert not asyncio.run(opened(place, False, dask_worker=Worker()))  # type: ignore[arg-type]
