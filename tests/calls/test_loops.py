"""Loops on the workers: values, where they run, how they end, and what they leave."""

from __future__ import annotations

import gc
import logging
import re
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client

import dask_dgpu as dgpu
from tests.calls.test_jit import fail, managed, sized, tasks_of
from tests.cluster.conftest import SETTINGS
from tests.cluster.losses import Losses
from tests.cluster.observe import eventually, host, send_signal

__all__ = ["sized"]

pytestmark = pytest.mark.cluster


def power(x: da.Array, n: int, most: int = 100) -> tuple[da.Array, Any]:
    """Multiply a vector by a matrix n times."""
    return dgpu.while_loop(
        lambda state: state[1] < n,
        lambda state: (x @ state[0] / len(x), state[1] + 1),
        (x[0], 0),
        max_iterations=most,
    )


def powered(a: np.ndarray, n: int) -> np.ndarray:
    return np.asarray(np.linalg.matrix_power(a / len(a), n) @ a[0])


@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_while_loop(sized: da.Array, n: int) -> None:
    a = host(sized.compute())
    x, count = power(sized, n)
    assert int(count) == n
    np.testing.assert_allclose(host(x.compute()), powered(a, n))
    y, count = power(sized, n, most=2)
    assert int(count) == min(n, 2)
    np.testing.assert_allclose(host((y + 1).compute()), powered(a, min(n, 2)) + 1)
    (z,) = dgpu.fori_loop(3, lambda i, state: (state[0] + i * state[0],), (y,))
    np.testing.assert_allclose(host(z.compute()), powered(a, min(n, 2)) * 6)


def test_no_iterations(placed: da.Array) -> None:
    x, count = power(placed, 5, most=0)
    assert int(count) == 0
    np.testing.assert_array_equal(host(x.compute()), host(placed[0].compute()))
    assert float(dgpu.fori_loop(0, lambda i, s: s + 1, 2.5)) == 2.5


@pytest.mark.parametrize(
    "chunks",
    [(13, 11), *(pytest.param(x, marks=pytest.mark.slow) for x in (37, (13, 37), (36, 20)))],
)
def test_few_and_many_blocks(client: Client, chunks: Any) -> None:
    a = np.random.default_rng(0).random((37, 37))
    x = da.from_array(a, chunks=chunks)
    found = dgpu.fori_loop(3, lambda i, s: (x @ s / 37).rechunk(s.chunks), x)
    np.testing.assert_allclose(found.compute(), np.linalg.matrix_power(a / 37, 3) @ a)


def test_parts_that_change_places(sized: da.Array) -> None:
    """Blocks that only change places have other owners in each iteration."""
    a = host(sized.compute())

    def body(i: Any, state: Any) -> Any:
        x, y, z = state
        return y, z, x + 1

    start = sized, sized.T.persist(), sized[::-1].rechunk(sized.chunks).persist()
    expected = a, a.T, a[::-1]
    for n in (1, 2, 5):
        found, own = dgpu.fori_loop(n, body, start), expected
        for _ in range(n):
            own = own[1], own[2], own[0] + 1
        for each, value in zip(found, own, strict=True):
            np.testing.assert_allclose(host(each.compute()), value)
    for n in (0, 1, 2, 5):
        *found, _ = dgpu.while_loop(
            lambda s: s[3] < n,  # noqa: B023
            lambda s: (*body(None, s[:3]), s[3] + 1),
            (*start, 0),
            max_iterations=9,
        )
        own = expected
        for _ in range(n):
            own = own[1], own[2], own[0] + 1
        moved = dgpu.jit(lambda x, y, z: (x + y, z * 1))(*found)
        for each, value in zip(moved, (own[0] + own[1], own[2]), strict=True):
            np.testing.assert_allclose(host(each.compute()), value)


def test_history(client: Client, placed: da.Array, caplog: Any) -> None:
    """A history of residuals is an array of the state, and the loop is one program."""
    n = 37

    def body(state: Any) -> Any:
        x, history, k = state
        r = 1 - x - placed @ x / n
        at = da.arange(50, chunks=50, like=r._meta)
        return x + r, da.where(at == k, da.sqrt(r @ r), history), k + 1

    start = da.zeros_like(placed[0]), da.full_like(placed[0], np.inf, shape=50, chunks=50), 0
    with caplog.at_level(logging.INFO, "dask_dgpu"):
        x, history, k = dgpu.while_loop(
            lambda s: (s[2] == 0) | (s[1].min() > 1e-6), body, start, max_iterations=50
        )
    a, own, expected = host(placed.compute()), np.zeros(n), [np.inf]
    while min(expected) > 1e-6:
        expected.append(np.linalg.norm(1 - own - a @ own / n))
        own = 1 - a @ own / n
    assert int(k) == len(expected) - 1
    np.testing.assert_allclose(host(history.compute())[: int(k)], expected[1:], rtol=1e-6)
    np.testing.assert_allclose(host(x.compute()), own)
    assert "persisted" not in caplog.text


def test_functions_within_functions(placed: da.Array, caplog: Any) -> None:
    """Those from ``jit``, and loops of a number of iterations, are parts of one program."""
    a = host(placed.compute())
    inner = dgpu.jit(lambda x: x @ placed / 37)
    outer = dgpu.jit(lambda x: dgpu.fori_loop(2, lambda i, x: inner(x) + i, x))
    with caplog.at_level(logging.INFO, "dask_dgpu"):
        x = dgpu.fori_loop(3, lambda i, x: outer(inner(x)), placed)
    expected = a
    for _ in range(3):
        expected = ((expected @ a / 37) @ a / 37) @ a / 37 + 1
    np.testing.assert_allclose(host(x.compute()), expected)
    np.testing.assert_allclose(host(outer(placed).compute()), (a @ a / 37) @ a / 37 + 1)
    assert "persisted" not in caplog.text


def test_kept_loops(placed: da.Array) -> None:
    traced = []

    @dgpu.jit
    def body(state: Any) -> Any:
        traced.append(state)
        return state[0] + 1, state[1] * 0.5

    cond = dgpu.jit(lambda state: state[1] > 0.01)
    for tol in (1.0, 8.0, 3.0):
        x, rest = dgpu.while_loop(cond, body, (placed, tol), max_iterations=50)
        n = int(np.ceil(np.log2(tol / 0.01)))
        assert float(rest) == tol / 2**n
        np.testing.assert_allclose(host(x.compute()), host(placed.compute()) + n)
    assert len(traced) == 2
    body.clear()
    dgpu.while_loop(cond, body, (placed, 2.0), max_iterations=50)
    assert len(traced) == 4


def test_loops_are_no_tasks(client: Client, placed: da.Array) -> None:
    x, _ = power(placed, 3)
    x.compute()
    gc.collect()
    tasks = tasks_of(client)
    for _ in range(5):
        x = dgpu.fori_loop(20, lambda i, s: s / s.sum(), x)
    np.testing.assert_allclose(float(x.sum()), 1)
    del x
    gc.collect()
    eventually(lambda: tasks_of(client) <= tasks)
    eventually(lambda: managed(client) <= 60)


def test_loops_of_the_same_code_keep_one_program(placed: da.Array) -> None:
    def programs() -> int:
        gc.collect()
        return sum(type(each).__name__ == "Program" for each in gc.get_objects())

    int(power(placed, 2)[1])
    before = programs()
    for _ in range(5):
        int(power(placed, 2)[1])
    assert programs() <= before


def test_what_is_not_one_program_is_persisted(placed: da.Array, caplog: Any) -> None:
    def body(state: Any) -> Any:
        noise = da.random.random(37, chunks=10)
        return state[0] + (noise * 0).astype(state[0].dtype), state[1] + 1

    with caplog.at_level(logging.INFO, "dask_dgpu"):
        x, count = dgpu.while_loop(
            lambda state: state[1] < 3, body, (da.ones(37, chunks=10), 0), max_iterations=9
        )
    assert int(count) == 3
    assert float(x.sum()) == 37
    assert "calls are persisted" in caplog.text


def test_without_a_cluster() -> None:
    x = da.ones((5, 5), chunks=2)
    with dask.config.set(array_optimize=None, scheduler="synchronous"):
        found, n = power(x, 4)
        assert (int(n), found.sum().compute()) == (4, 5)


def test_errors(placed: da.Array) -> None:
    found = dgpu.fori_loop(3, lambda i, x: x.map_blocks(fail, meta=x._meta), placed)
    with pytest.raises(ArithmeticError, match="of a user"):
        found.compute()
    for body in (lambda s: s.rechunk(3), lambda s: s.astype("f4"), lambda s: 1):
        with pytest.raises(TypeError, match="expected body to return float64 in chunks"):
            dgpu.while_loop(lambda s: s.sum() > 0, body, placed, max_iterations=2)
    with pytest.raises(TypeError, match="expected body to return 1 arrays, got 2"):
        dgpu.while_loop(lambda s: s.sum() > 0, lambda s: (s, s), placed, max_iterations=2)
    with pytest.raises(TypeError, match="expected the result of cond to be a Dask array of bool"):
        dgpu.while_loop(lambda s: s.sum(), lambda s: s, placed, max_iterations=2)
    with pytest.raises(TypeError, match="expected cond to be callable"):
        dgpu.while_loop(1, lambda s: s, placed, max_iterations=2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected n to be an integer of at least 0"):
        dgpu.fori_loop(-1, lambda i, s: s, placed)
    with pytest.raises(TypeError, match="expected state to be an array"):
        dgpu.fori_loop(1, lambda i, s: s, "x")


def endless(x: da.Array) -> Any:
    """Return a loop whose blocks stay where they are."""
    x = dgpu.jit(lambda x: x * 1)(x)
    return dgpu.while_loop(
        lambda s: s[0].sum() > -1, lambda s: (s[0] * 1, s[1] + 1), (x, 0), max_iterations=1 << 60
    )


def interrupted(read: Callable[[], Any]) -> None:
    """Interrupt the main thread while it reads, until it stops: C may clear an interrupt."""
    main, ended = threading.main_thread().ident, threading.Event()

    def interrupt() -> None:
        while not ended.wait(1.0):
            signal.pthread_kill(main or 0, signal.SIGINT)

    def begin() -> None:
        timer.start()
        # in the background a shell lets processes ignore it
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            read()
        finally:
            signal.signal(signal.SIGINT, before)
            ended.set()

    timer = threading.Thread(target=interrupt)
    with pytest.raises(KeyboardInterrupt):
        begin()
    timer.join()


def test_interrupted(sized: da.Array) -> None:
    interrupted(lambda: int(power(sized, 1 << 60, most=1 << 60)[1]))
    x, count = endless(sized)
    interrupted(lambda: int(count))
    with pytest.raises(dgpu.errors.GangError, match="the loop was interrupted"):
        x.compute()
    assert float(dgpu.jit(lambda x: x.sum())(sized)) == pytest.approx(host(sized.sum().compute()))


def test_a_client_that_leaves(client: Client) -> None:
    with Client(client.scheduler.address, set_as_default=False) as other, other.as_current():
        endless(da.ones((600, 600), chunks=100))
        time.sleep(0.5)
    x = da.ones((600, 600), chunks=100)
    assert float(dgpu.jit(lambda x: x.sum())(x)) == 360_000
    assert float((x @ x).sum().compute()) == 600**3


@pytest.mark.slow
def test_loops_may_take_any_time(client: Client, sized: da.Array) -> None:
    a = host(sized.compute())
    with dgpu.enable(client, **SETTINGS | {"gang_timeout": "1s"}):
        start = time.monotonic()
        x, count = power(sized, 3000, most=10_000)
        assert int(count) == 3000
        assert time.monotonic() - start > 1
    np.testing.assert_allclose(host(x.compute()), powered(a, 3000), rtol=1e-6)


class TestLosses(Losses):
    @pytest.mark.slow
    @pytest.mark.timeout(240)
    def test_loops_are_repeated(self, client: Client, placed: da.Array) -> None:
        matrix = da.tile(placed, (8, 8)).rechunk(100).persist()
        a = host(matrix.compute())
        x, count = power(matrix, 600, most=1000)
        again = dgpu.jit(lambda x: x * 2)(x)
        send_signal(client, min(client.scheduler_info()["workers"]))
        assert int(count) == 600
        np.testing.assert_allclose(host(x.compute()), powered(a, 600))
        np.testing.assert_allclose(host(again.compute()), powered(a, 600) * 2)


def test_a_bar_counts_iterations(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    x = da.ones((8, 8), chunks=4).persist()
    y = dgpu.fori_loop(300, lambda i, y: y + x, x)
    dgpu.progress(y)
    loop, end = capsys.readouterr().out.splitlines()
    assert loop.startswith("loop")
    assert "300/300" in loop
    assert re.fullmatch(r"1 call of 300 iterations in [\d.]+ m?s", end)
    np.testing.assert_array_equal(y.compute(), 301)
    z = x.persist()
    dgpu.progress(y, z)
    assert len(capsys.readouterr().out.splitlines()) == 4
