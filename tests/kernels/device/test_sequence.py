"""Launches on both lanes of a GPU as one graph."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dask_dgpu.errors import CommAbortedError

pytestmark = pytest.mark.gpu

LIMIT = 1 << 26


@pytest.fixture
def device() -> Iterator[Any]:
    from dask_dgpu.kernels.device.cuda import CudaDevice

    device = CudaDevice()
    with device.computing():
        yield device
    device.release()


def both_lanes(device: Any, arrays: list[Any]) -> Any:
    """Return work of the compute lane on work of the transfer lane, with temporary memory."""
    (x,) = arrays
    with device.transferring():
        moved = x + 1
    device.join()
    for _ in range(5):
        moved = moved * 2 - moved
    return {"value": moved * x}


def run(device: Any, x: Any, work: Any = both_lanes, limit: int = LIMIT) -> tuple[Any, bool]:
    """Return what work computes, and whether it was recorded."""
    device.begin()
    device.join()  # as between steps: x may still be computed on its lane
    recorded = device.sequences.find(work, [x], work, limit)
    result = work(device, [x]) if recorded is None else recorded.launch([x])
    value = result["value"].copy()
    device.join()
    device.synchronize()
    return value.get(), recorded is not None


@pytest.mark.parametrize("size", [1000, 1 << 20])
def test_other_numbers_give_other_results(device: Any, size: int) -> None:
    import cupy

    kept = []
    for at in range(5):
        x = cupy.arange(size, dtype="float64") + at
        kept.append(x)  # elsewhere each time
        found, recorded = run(device, x)
        assert recorded == (at > 0)
        np.testing.assert_array_equal(found, (x.get() + 1) * x.get())
    assert device.sequences.nbytes >= size * 8


def test_memory_that_is_freed_meanwhile_is_not_that_of_the_recording(device: Any) -> None:
    import cupy

    x = cupy.arange(1 << 16, dtype="float64")
    stop = threading.Event()
    errors: list[BaseException] = []

    def allocate() -> None:
        try:
            while not stop.is_set():
                y = cupy.full(1 << 16, 7.0)
                assert float(y[-1]) == 7
                del y
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=allocate)
    thread.start()
    try:
        for _ in range(50):
            found, _ = run(device, x)
            np.testing.assert_array_equal(found, (x.get() + 1) * x.get())
    finally:
        stop.set()
        thread.join()
    assert not errors
    assert len(device.sequences) == 1


def test_blocks_that_devices_free_while_one_records(device: Any) -> None:
    """Guards of freed memory ask the lanes, which must not be those that are recorded."""
    import cupy

    lent = [device.borrow(cupy.zeros(1 << 20)) for _ in range(50)]
    lent += [device.hand_over(cupy.zeros(1 << 20)) for _ in range(50)]

    def frees(inner: Any, arrays: list[Any]) -> Any:
        lent.clear()
        return both_lanes(inner, arrays)

    x = cupy.ones(1000)
    results = [run(device, x, frees) for _ in range(3)]
    assert [recorded for _, recorded in results] == [False, True, True]


def to_host(device: Any, arrays: list[Any]) -> Any:
    return {"value": arrays[0] + device.to_host(arrays[0]).sum()}


def from_host(device: Any, arrays: list[Any]) -> Any:
    import cupy

    return {"value": arrays[0] + cupy.asarray(np.arange(1000.0))}


def synchronizes(device: Any, arrays: list[Any]) -> Any:
    return {"value": arrays[0] * float(arrays[0].sum())}


def multiplies(device: Any, arrays: list[Any]) -> Any:
    return {"value": arrays[0].reshape(10, 100) @ arrays[0].reshape(100, 10)}


@pytest.mark.parametrize("work", [to_host, from_host, synchronizes, multiplies])
def test_what_cannot_be_recorded_is_issued(device: Any, work: Any) -> None:
    """Reads and writes of the host, and products by CuPy, which refuses."""
    import cupy

    x = cupy.arange(1000.0)
    results = [run(device, x, work) for _ in range(4)]
    assert not any(recorded for _, recorded in results)
    for found, _ in results[1:]:
        np.testing.assert_array_equal(found, results[0][0])
    assert run(device, x)[1] is False
    assert run(device, x)[1] is True  # the lanes work as before


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128", "int32"])
@pytest.mark.parametrize(
    ("m", "k", "n"), [(7, 5, 3), (1, 64, 64), (64, 64, 1), (1, 1, 1), (129, 257, 65)]
)
@pytest.mark.parametrize("transposed", [False, True])
def test_products_are_recorded(
    device: Any, dtype: str, m: int, k: int, n: int, transposed: bool
) -> None:
    import cupy

    from dask_dgpu.kernels import gemm

    rng = np.random.default_rng(m * k * n)

    def drawn(rows: int, columns: int) -> Any:
        shape = (columns, rows) if transposed else (rows, columns)
        values = rng.integers(-3, 4, shape).astype(dtype)
        return cupy.asarray(values).T if transposed else cupy.asarray(values)

    a, b = drawn(m, k), drawn(k, n)

    def product(inner: Any, arrays: list[Any]) -> Any:
        out = inner.zeros((m, 2 * n), dtype)
        gemm.accumulate_group([(out[:, :n], arrays[0], b), (out[:, n:], arrays[0], b)])
        return {"value": out}

    wanted = a.get() @ b.get()
    results = [run(device, a, product) for _ in range(3)]
    assert [recorded for _, recorded in results] == [False, True, True]
    for found, _ in results:
        np.testing.assert_array_equal(found, np.hstack([wanted, wanted]))


def test_packing_is_recorded_with_its_tables(device: Any) -> None:
    """Tables of other packings, which share a ring of memory, do not take their place."""
    import cupy

    from dask_dgpu.kernels.pack import copy_pieces
    from tests.kernels.pack.test_pack import pieces_of

    def turn(used: Any, target: Any, source: Any, shift: int) -> None:
        rows = [(target[at], source[(at + shift) % 10]) for at in range(10)]
        copy_pieces(used, pieces_of(rows))

    def turned(inner: Any, arrays: list[Any]) -> Any:
        out = inner.empty((10, 100), "float64")
        turn(inner, out, arrays[0], 3)
        return {"value": out}

    x = cupy.arange(1000.0).reshape(10, 100)
    for at in range(4):
        found, recorded = run(device, x + at, turned)
        assert recorded == (at > 0)
        np.testing.assert_array_equal(found, np.roll(x.get() + at, -3, axis=0))
        for shift in range(20):
            turn(device, cupy.empty((10, 100)), x, shift)


def test_an_ended_recording_sends_nothing(device: Any) -> None:
    import cupy

    x = cupy.ones(1000)
    run(device, x)
    recorded = device.sequences.find(both_lanes, [x], both_lanes, LIMIT)
    recorded.end()
    with pytest.raises(CommAbortedError, match="aborted"):
        recorded.launch([x])
    assert run(device, x)[1]  # recorded again


def test_memory_is_freed_with_the_recording(device: Any) -> None:
    import cupy

    pool = cupy.get_default_memory_pool()
    x = cupy.ones(1 << 18)
    run(device, x)
    before = pool.used_bytes()
    for _ in range(2):
        run(device, x)
    assert pool.used_bytes() >= before + x.nbytes
    device.release()
    assert pool.used_bytes() <= before
