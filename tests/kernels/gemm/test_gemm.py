"""Products on a host: exact, in place, and without the GIL."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from dask_dgpu.kernels.gemm import accumulate

DTYPES = ["float32", "float64", "complex64", "complex128", "int64", "uint8"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 2), (1, 4, 7), (64, 33, 48), (2, 3, 0)])
def test_a_product_is_added_in_place(dtype: str, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    chance = np.random.default_rng(0)
    a, b, out = (
        chance.integers(0, 9, each).astype(dtype) * (1j if dtype.startswith("complex") else 1)
        for each in ((m, k), (k, n), (m, n))
    )
    a, b, out = (each.astype(dtype) for each in (a, b, out))
    expected = out + a @ b
    accumulate(out, a, b)
    np.testing.assert_array_equal(out, expected)


def test_factors_may_have_any_strides() -> None:
    a, b = np.arange(24.0).reshape(2, 4, 3)[:, ::2], np.arange(12.0).reshape(4, 3).T
    out = np.zeros((2, 4))
    accumulate(out, a[0].copy(order="F"), b)
    np.testing.assert_array_equal(out, a[0] @ b)


def test_other_threads_run_during_a_product() -> None:
    """A worker's event loop must answer while its program thread multiplies."""
    a = np.random.default_rng(0).random((1500, 1500))
    out = np.zeros_like(a)
    end = threading.Event()
    times = []

    def tick() -> None:
        while not end.wait(0.001):
            times.append(time.perf_counter())

    thread = threading.Thread(target=tick)
    thread.start()
    begin = time.perf_counter()
    accumulate(out, a, a)
    stop = time.perf_counter()
    end.set()
    thread.join()
    longest = np.diff([begin, *(at for at in times if begin < at < stop), stop]).max()
    assert longest < 0.7 * (stop - begin)
