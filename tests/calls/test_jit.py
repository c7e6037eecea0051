"""Functions that are called on the workers: values, kinds of arguments, and what a call costs."""

from __future__ import annotations

import gc
import logging
import math
import threading
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, futures_of, wait

import dask_dgpu as dgpu
from tests.cluster.observe import eventually, host

pytestmark = pytest.mark.cluster


def tasks_of(client: Client) -> int:
    """Return the number of tasks on the scheduler."""
    return int(client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)))


def managed(client: Client) -> int:
    """Return the number of results in the memory of workers."""
    return sum(client.run(lambda dask_worker: len(dask_worker.data)).values())


@pytest.fixture(params=["small", "large"])
def sized(request: Any, placed: da.Array) -> da.Array:
    """A matrix for the first rank alone, or for all."""
    return placed if request.param == "small" else da.tile(placed, (8, 8)).rechunk(100).persist()


def test_results(sized: da.Array) -> None:
    a = host(sized.compute())
    step = dgpu.jit(lambda x, s: (x @ x * s, x.sum()))
    y, total = step(sized, 0.5)
    assert isinstance(y, da.Array)
    np.testing.assert_allclose(float(total), a.sum())
    np.testing.assert_allclose(host(y.compute()), a @ a * 0.5)
    z, _ = step(y, 0.25)
    np.testing.assert_allclose(host(z.compute()), (a @ a * 0.5) @ (a @ a * 0.5) * 0.25)


def test_calls_are_no_tasks(client: Client, placed: da.Array) -> None:
    step = dgpu.jit(lambda x: x / x.sum())
    a = host(placed.compute())
    x = step(placed)
    eventually(lambda: tasks_of(client) == 16)
    for _ in range(20):
        x = step(x)
    np.testing.assert_allclose(host(x.compute()), a / a.sum())
    assert tasks_of(client) == 16


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int32"])
def test_dtypes_are_those_of_dask(client: Client, device: str, dtype: str) -> None:
    x = da.from_array(np.arange(12).astype(dtype), chunks=5)
    if device == "cuda":
        import cupy

        x = x.map_blocks(cupy.asarray)

    def function(x: Any, s: float, n: int) -> Any:
        return x * s + n, (x * n).sum()

    for ours, own in zip(dgpu.jit(function)(x, 0.3, 2), function(x, 0.3, 2), strict=True):
        assert ours.dtype == own.dtype
        np.testing.assert_allclose(host(ours.compute()), host(own.compute()), rtol=1e-6)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, s: x * s,
        lambda x, s: x * (2 * s),
        lambda x, s: x * np.sqrt(s),
        lambda x, s: x + 1 if s > 0.4 else x - 1,
        lambda x, s: x + 1 if math.sqrt(s) > 0.6 else x - 1,
        lambda x, s: x + 1 if np.array([s]).sum() > 0.4 else x - 1,
        lambda x, s: x + 1 if np.sqrt(s) > 0.6 else x - 1,
        lambda x, s: x + 1 if float(s) > 0.4 else x - 1,
        lambda x, s: da.full_like(x, s) + x,
        lambda x, s: [x, x + s],
        lambda x, s: (x.sum() + s, s),
        lambda x, s: x if float(x.sum()) > s else x + 1,
    ],
)
def test_numbers(placed: da.Array, function: Any) -> None:
    step = dgpu.jit(function)
    for s in (0.123456789, 0.5, 0.75, 0.3):
        ours, own = dask.compute(step(placed, s), function(placed, s))
        for each, expected in zip(ours, own, strict=True):
            np.testing.assert_allclose(host(each), host(expected))


def test_numbers_make_no_new_program(placed: da.Array, caplog: Any) -> None:
    traced = []

    def function(x: Any, s: float) -> Any:
        traced.append(s)
        return x * s

    step = dgpu.jit(function)
    for s in (0.5, 0.1234567891, 1e300, float("inf"), -0.0):
        found = host(step(placed, s).compute())
        np.testing.assert_array_equal(found, host(placed.compute()) * s)
    assert len(traced) == 4
    step(placed.rechunk(20), 0.5)
    assert len(traced) == 8
    step.clear()
    step(placed, 0.5)
    assert len(traced) == 12


def test_arrays_of_the_function(placed: da.Array) -> None:
    b = np.random.default_rng(1).random((37, 37))
    of_host = da.from_array(b, chunks=10)
    a = host(placed.compute())
    if type(placed._meta) is np.ndarray:
        step = dgpu.jit(lambda x: of_host @ x + placed)
        np.testing.assert_allclose(step(step(placed)).compute(), b @ (b @ a + a) + a)
    part = dgpu.jit(lambda x: x[:12, 3:].sum(axis=0))
    np.testing.assert_allclose(host(part(placed).compute()), a[:12, 3:].sum(axis=0))


def test_results_in_graphs(client: Client, placed: da.Array) -> None:
    a = host(placed.compute())
    step = dgpu.jit(lambda x: x + 1)
    x = step(placed)
    np.testing.assert_allclose(host((x @ x).compute()), (a + 1) @ (a + 1))
    np.testing.assert_allclose(host(step(x.T).compute()), (a + 1).T + 1)
    kept = step(x).persist()
    np.testing.assert_allclose(host(kept.compute()), a + 2)
    client.publish_dataset(x, name="x")
    with Client(client.scheduler.address, set_as_default=False) as other:
        found = other.get_dataset("x")
        np.testing.assert_allclose(host(other.compute(found, sync=True)), a + 1)
    client.unpublish_dataset("x")


@pytest.mark.parametrize("known", [False, True])
def test_waits_for_results(client: Client, placed: da.Array, known: bool) -> None:
    """Dask asks for futures on its event loop, which has to go on."""
    step = dgpu.jit(lambda x: x + 1)
    x, y = step(placed), step(placed)
    if known:
        assert len(y.dask) == placed.npartitions
    done, others = wait([x, y])
    assert {each.status for each in done} == {"finished"}
    assert not others
    assert {type(each) for each in client.gather(futures_of(x))} == {type(placed._meta)}
    np.testing.assert_allclose(host((x - y + 1).sum().compute()), placed.size)
    failed, _ = wait(dgpu.jit(lambda x: x.map_blocks(fail, meta=x._meta))(x))
    assert {each.status for each in failed} == {"error"}
    assert isinstance(next(iter(failed)).exception(), ArithmeticError)


def test_memory_is_freed(client: Client, placed: da.Array) -> None:
    step = dgpu.jit(lambda x: x + 1)
    x = step(placed)
    y = x + 1
    assert tasks_of(client) > 16
    del x, y
    gc.collect()
    eventually(lambda: tasks_of(client) == 16)
    eventually(lambda: managed(client) <= 32)


def test_what_is_not_one_program_is_persisted(placed: da.Array, caplog: Any) -> None:
    step = dgpu.jit(lambda x: x.map_overlap(np.sort, depth=0) + da.random.random(37, chunks=10))
    with caplog.at_level(logging.INFO, "dask_dgpu"):
        found = [step(placed).sum().compute() for _ in range(2)]
    assert found[0] != found[1]
    assert "calls are persisted, because the function is another at each call" in caplog.text


def fail(block: Any) -> Any:
    if block.size:
        raise ArithmeticError("of a user")
    return block


def test_errors_are_raised_where_results_are_read(placed: da.Array) -> None:
    step = dgpu.jit(lambda x: x + 1)
    failing = dgpu.jit(lambda x: x.map_blocks(fail, meta=x._meta))
    x = step(placed)
    y = failing(x)
    z = step(placed)
    with pytest.raises(ArithmeticError, match="of a user"):
        y.compute()
    np.testing.assert_allclose(host(z.compute()), host(placed.compute()) + 1)
    np.testing.assert_allclose(host((step(x) + 0).compute()), host(placed.compute()) + 2)
    with pytest.raises(ArithmeticError, match="of a user"):
        (y + 1).compute()


def test_undeclared_blocks(placed: da.Array, caplog: Any) -> None:
    def function(x: Any) -> Any:
        y = x.map_blocks(lambda block: block[:, :-1], dtype=x.dtype, meta=x._meta)
        return (y @ y.T).sum()

    step = dgpu.jit(function)
    with pytest.raises(dgpu.errors.UndeclaredError):
        float(step(placed))
    with caplog.at_level(logging.INFO, "dask_dgpu"):
        again = step(placed)
    assert "calls are persisted, because a block" in caplog.text
    with pytest.raises(dgpu.errors.UndeclaredError):  # on_error is "raise"
        float(again)


def test_donated(placed: da.Array) -> None:
    step = dgpu.jit(lambda x: x + 1, donate=0)
    x = step(placed)
    y = step(x)
    with pytest.raises(dgpu.errors.GangError, match="donated"):
        step(x)
    with pytest.raises(dgpu.errors.GangError, match="donated"):
        (x + 1).compute()
    same, z = dgpu.jit(lambda x: (x, x + 1), donate=0)(y)  # a result is not donated
    np.testing.assert_allclose(host(same.compute()), host(z.compute()) - 1)
    np.testing.assert_allclose(host(y.compute()), host(placed.compute()) + 2)
    np.testing.assert_allclose(host(placed.compute()) + 1, host((placed + 1).compute()))


def test_gangs_in_between(sized: da.Array) -> None:
    a = host(sized.compute())
    step = dgpu.jit(lambda x: x @ sized / len(a))
    x, expected = sized, a
    for _ in range(10):
        product = (sized @ sized).sum().persist()
        x, expected = step(x), expected @ a / len(a)
        np.testing.assert_allclose(float(product.compute()), (a @ a).sum())
    np.testing.assert_allclose(host(x.compute()), expected)


def test_two_clients(client: Client) -> None:
    a = np.random.default_rng(0).random((300, 300))
    step = dgpu.jit(lambda x, y: x @ y / 300)
    found: list[Any] = []

    def call() -> None:
        with Client(client.scheduler.address, set_as_default=False) as other, other.as_current():
            x = mine = da.from_array(a, chunks=100).persist()
            for _ in range(20):
                x = step(x, mine)
                float(x[0, 0])
            found.append(host(x.compute()))

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 2
    for each in found:
        np.testing.assert_allclose(each, np.linalg.matrix_power(a / 300, 20) @ a)


def test_many_calls_in_flight(placed: da.Array) -> None:
    step = dgpu.jit(lambda x: x + 1)
    x = placed
    for _ in range(300):
        x = step(x)
    np.testing.assert_allclose(host(x.compute()), host(placed.compute()) + 300)


def test_lower(placed: da.Array) -> None:
    step = dgpu.jit(lambda x: x @ x)
    assert "matmul" in str(step.lower(placed))


def test_arguments() -> None:
    with pytest.raises(TypeError, match="expected function to be callable, got 3"):
        dgpu.jit(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        dgpu.jit(len, donate="x")
    with pytest.raises(TypeError, match="expected argument 1 to be a Dask array or a number"):
        dgpu.jit(lambda x, y: x)(da.ones(3), "y")
