"""Copies by threads, and memory that is used again."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from threading import Event

import numpy as np
import pytest

from dask_dgpu.batches.copying import Staging, copy, in_threads


@pytest.fixture
def executor() -> Iterator[Executor]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


@pytest.mark.parametrize("shape", [(1 << 18,), (3, 70_001), (70_001, 3), (1, 1, 131_071), (5,), ()])
def test_copies(executor: Executor, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).random(shape)
    found = np.zeros_like(x)
    copy(executor, found, x)
    np.testing.assert_array_equal(found, x)


def test_an_error_of_a_thread_is_raised(executor: Executor) -> None:
    with pytest.raises(TypeError, match="Cannot cast"):
        copy(executor, np.zeros(3, int), np.zeros(3))


@pytest.mark.parametrize("helpers", [0, 1, 5])
def test_works_are_shared(executor: Executor, helpers: int) -> None:
    done: list[int] = []
    in_threads(executor, (partial(done.append, at) for at in range(100)), helpers, pytest.fail)
    assert sorted(done) == list(range(100))
    assert helpers or done == sorted(done)


def test_works_need_no_free_thread(executor: Executor) -> None:
    held, done = Event(), []
    for _ in range(2):
        executor.submit(held.wait)
    in_threads(executor, (partial(done.append, at) for at in range(10)), 3, pytest.fail)
    held.set()
    assert done == list(range(10))


def test_an_error_stops_works_that_wait(executor: Executor) -> None:
    stopped, begun = Event(), []

    def wait() -> None:
        begun.append(0)
        assert stopped.wait(10)
        raise OSError("stopped")

    def fail() -> None:
        raise RuntimeError("no such part")

    with pytest.raises(RuntimeError, match="no such part"):
        in_threads(executor, iter([wait, fail, *[wait] * 10]), 1, stopped.set)
    assert begun == [0]


def test_memory_is_used_again_once_all_views_are_gone() -> None:
    staging = Staging()
    x = staging.array((10, 10), np.dtype(float))
    there = x.ctypes.data
    view = x[3:].T
    del x
    y = staging.array((10, 10), np.dtype(float))
    assert y.ctypes.data != there
    del view
    z = staging.array((5,), np.dtype("complex64"))
    assert z.ctypes.data == there
    assert (z.shape, z.dtype, z.flags.writeable) == ((5,), np.dtype("complex64"), True)
    assert staging.array((11, 10), np.dtype(float)).ctypes.data not in (there, y.ctypes.data)
    assert staging.array((0, 3), np.dtype(float)).shape == (0, 3)


def test_arrays_outlive_the_staging() -> None:
    x = Staging().array((1000,), np.dtype(float))
    x[:] = 1
    assert x.sum() == 1000
