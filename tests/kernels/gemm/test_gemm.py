"""Products on a host: exact, in place, and without the GIL."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

from dask_dgpu.kernels.gemm import SMALL_BYTES, accumulate, accumulate_group, accumulate_stack, host

Array = Any

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


@pytest.mark.parametrize("dtype", [*DTYPES, "bool"])
@pytest.mark.parametrize(
    "shape", [(3, 4, 5, 6), (2, 70, 80, 3), (300, 16, 16, 16), (0, 2, 2, 2), (2, 0, 3, 1)]
)
def test_products_of_stacks_are_added(dtype: str, shape: tuple[int, int, int, int]) -> None:
    batch, m, n, k = shape
    chance = np.random.default_rng(0)
    sizes = (batch, m, k), (batch, n, k), (batch, m, n)
    a, b, out = (chance.integers(0, 3, each).astype(dtype) for each in sizes)
    b = b.transpose(0, 2, 1)
    expected = out + a @ b
    accumulate_stack(out, a, b)
    np.testing.assert_array_equal(out, expected)


def test_large_matrices_of_a_stack_are_multiplied_in_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called = []
    call_blas = host.call_blas
    monkeypatch.setattr(host, "call_blas", lambda *args: (called.append(args), call_blas(*args)))
    side = int((SMALL_BYTES // 8) ** 0.5)
    for length, calls in ((side, 0), (side + 1, 3)):
        out, a = np.zeros((3, length, length)), np.ones((3, length, 2))
        accumulate_stack(out, a, np.ones((3, 2, length)))
        assert (out == 2).all()
        assert len(called) == calls


def _part(x: Array, order: Any) -> Array:
    whole = np.zeros((x.shape[0] + 3, x.shape[1] + 2), x.dtype, order=order)
    whole[1:-2, 2:] = x
    return whole[1:-2, 2:]


ORDERS: dict[str, Callable[[Array], Array]] = {
    "rows": np.ascontiguousarray,
    "columns": np.asfortranarray,
    "part of rows": lambda x: _part(x, "C"),
    "part of columns": lambda x: _part(x, "F"),
    "gaps": lambda x: np.repeat(np.repeat(x, 2, axis=0), 2, axis=1)[::2, ::2],
    "reversed": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "one row": lambda x: np.broadcast_to(x[:1], x.shape),
    "one column": lambda x: np.broadcast_to(x[:, :1], x.shape),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("left", ORDERS)
def test_factors_and_result_may_have_any_strides(left: str, dtype: str) -> None:
    """Also with a vector, and with a result that is a part of a larger array."""
    chance = np.random.default_rng(0)
    for right, m, n, k in product(ORDERS, (1, 2, 5), (1, 2, 5), (1, 2, 7)):
        a = ORDERS[left](chance.integers(0, 9, (m, k)).astype(dtype))
        b = ORDERS[right](chance.integers(0, 9, (k, n)).astype(dtype))
        whole = np.ones((m + 2, n + 3), dtype)
        expected = whole.copy()
        expected[1 : m + 1, 2 : n + 2] += a @ b
        accumulate(whole[1 : m + 1, 2 : n + 2], a, b)
        np.testing.assert_array_equal(whole, expected)


@pytest.mark.parametrize(
    ("shape", "routine"),
    [((5, 4, 1), "gemv"), ((1, 4, 5), "gemv"), ((5, 4, 3), "gemm"), ((4, 9, 4), "syrk")],
)
@pytest.mark.parametrize("dtype", DTYPES[:4])
def test_routine_suits_the_shape(
    shape: tuple[int, int, int], routine: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A product with a vector reads the matrix once; ``x.T @ x`` is half of the work."""
    called = []

    def call(name: str, *arguments: Any) -> None:
        called.append(name)
        call_blas(name, *arguments)

    call_blas = host.call_blas
    monkeypatch.setattr(host, "call_blas", call)
    m, k, n = shape
    x = np.random.default_rng(0).integers(-9, 9, (k, m)).astype(dtype)
    y = x if routine == "syrk" else np.ones((k, n), dtype)
    out = np.arange(m * n).reshape(m, n).astype(dtype)
    expected = out + x.T @ y
    accumulate(out, x.T, y)
    np.testing.assert_array_equal(out, expected)
    assert called == [routine]


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


def test_products_of_a_group_are_added() -> None:
    rng = np.random.default_rng(3)
    shapes = [(3, 4, 5), (3, 4, 5), (1, 4, 2), (0, 2, 3), (2, 0, 3)]
    products = [
        (np.ones((m, n)), rng.integers(-3, 4, (m, k)) * 1.0, rng.integers(-3, 4, (k, n)) * 1.0)
        for m, k, n in shapes
    ]
    accumulate_group(products)
    accumulate_group([])
    for out, a, b in products:
        np.testing.assert_array_equal(out, 1 + a @ b)
