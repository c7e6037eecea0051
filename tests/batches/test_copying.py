"""Copies by threads, and memory that is used again."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor

import numpy as np
import pytest

from dask_dgpu.batches.copying import LEAST, THREADS, Staging, copies, copy


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
    assert len(copies(executor, found, x)) == (1 if x.nbytes < LEAST else THREADS)


def test_an_error_of_a_thread_is_raised(executor: Executor) -> None:
    with pytest.raises(TypeError, match="Cannot cast"):
        copy(executor, np.zeros(3, int), np.zeros(3))


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
