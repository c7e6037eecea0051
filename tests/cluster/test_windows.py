"""Blocks of ``dgpu.run`` through memory that the client shares with workers."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dask_dgpu as dgpu
from dask_dgpu.batches import ring, windows
from dask_dgpu.batches import sites as module
from dask_dgpu.batches.ring import NAME
from dask_dgpu.batches.windows import EXTENSION
from tests.cluster.conftest import SETTINGS
from tests.cluster.observe import eventually, send_signal, settled

pytestmark = pytest.mark.cluster

RNG = np.random.default_rng(5)
X = RNG.random((203, 97))
Z = (RNG.random((64, 53)) + 1j * RNG.random((64, 53))).astype("complex64")
SLOT = 1 << 12
FILES = "/proc/self/fd"


@pytest.fixture(autouse=True)
def small_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks go through windows, in several pieces."""
    monkeypatch.setattr(module, "LEAST", 1)
    monkeypatch.setattr(windows, "MOST_SLOT", {"cpu": SLOT, "cuda": SLOT})


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions that are called on workers for pieces."""
    found: list[str] = []
    call = windows.Windows._call

    async def noted(self: Any, way: Any, function: Callable[..., Any], *arguments: Any) -> Any:
        found.append(function.__name__)
        return await call(self, way, function, *arguments)

    monkeypatch.setattr(windows.Windows, "_call", noted)
    return found


def held(client: Client) -> int:
    """Return how many windows and blocks workers hold, and this process."""

    def mapped(dask_worker: Any) -> int:
        extension = dask_worker.extensions.get(EXTENSION)
        return 0 if extension is None else len(extension)

    gc.collect()  # frames of caught errors
    return sum(client.run(mapped).values()) + sum(map(_is_window, os.listdir(FILES)))


def _is_window(file: str) -> bool:
    try:
        return NAME in os.readlink(f"{FILES}/{file}")
    except OSError:  # closed meanwhile
        return False


@pytest.mark.parametrize("limit", [None, pytest.param("250 kiB", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("op", "arrays", "wanted"),
    [
        ("matmul", (X, X.T), X @ X.T),
        ("matmul", (np.asfortranarray(X), X.T.astype(">f8")), X @ X.T),
        pytest.param("exp", (X[::2, ::3],), np.exp(X[::2, ::3]), marks=pytest.mark.slow),
        pytest.param("fft2", (Z,), np.fft.fft2(Z), marks=pytest.mark.slow),
        pytest.param("sum", (X,), X.sum(), marks=pytest.mark.slow),
        ("exp", (X[:0],), np.exp(X[:0])),
    ],
    ids=["product", "orders", "strided", "complex", "one number", "empty"],
)
def test_results(client: Client, op: str, arrays: Any, wanted: Any, limit: str | None) -> None:
    options = {} if limit is None else {"memory_limit": limit, "memory_safety_margin": 0}
    with dgpu.enable(client, **SETTINGS, **options):
        found = dgpu.run(op, *arrays)
    assert (found.dtype, np.shape(found)) == (
        np.asarray(wanted).dtype.newbyteorder("="),
        wanted.shape,
    )
    eps = np.finfo(found.dtype).eps * np.abs(wanted).max(initial=0)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=16 * eps)
    assert held(client) == 0


def test_a_call_for_all_blocks_of_an_operand_on_a_worker(
    client: Client, calls: list[str], device: str
) -> None:
    with dgpu.enable(client, **SETTINGS):
        dgpu.run("matmul", X, X.T)
    workers = len(client.scheduler_info(n_workers=-1)["workers"])
    assert calls.count("taken") == 2 * workers
    assert calls.count("given") == workers


@pytest.mark.parametrize("limit", [None, pytest.param("250 kiB", marks=pytest.mark.slow)])
@pytest.mark.parametrize("op", ["matmul", "fft2"])
def test_blocks_are_received_in_the_result(
    client: Client, limit: str | None, op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[Any] = []
    receive = windows.Windows.receive

    async def noted(self: Any, *arguments: Any) -> Any:
        received.append(await receive(self, *arguments))
        return received[-1]

    monkeypatch.setattr(windows.Windows, "receive", noted)
    args, wanted = ((X, X.T), X @ X.T) if op == "matmul" else ((X,), np.fft.fft2(X))
    out = np.empty_like(wanted)
    with dgpu.enable(client, **SETTINGS, memory_limit=limit, memory_safety_margin=0):
        passes = dgpu.plan(op, *args).passes
        dgpu.run(op, *args, out=out)
    inside = sum(each.size for each in received if np.shares_memory(each, out))
    assert inside == sum(each.size for each in received) == passes * out.size
    np.testing.assert_allclose(out, wanted, rtol=1e-9, atol=1e-9)


def test_a_failure_here_ends_the_call_there(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, failed = ring._copy, list[None]()

    def failing(*arguments: Any) -> None:
        if len(failed) == 3:
            raise RuntimeError("no such part")
        failed.append(None)
        copy(*arguments)

    monkeypatch.setattr(ring, "_copy", failing)
    with dgpu.enable(client, **SETTINGS), pytest.raises(RuntimeError, match="no such part"):
        dgpu.run("matmul", X, X.T)
    eventually(lambda: held(client) == 0)
    monkeypatch.undo()
    with dgpu.enable(client, **SETTINGS):
        np.testing.assert_allclose(dgpu.run("matmul", X, X.T), X @ X.T, rtol=1e-12)


def test_a_transfer_that_fails_does_not_fail_the_next(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second call waits for the same window while the first fails."""
    copy, failed = ring._copy, list[None]()

    def failing(*arguments: Any) -> None:
        if not failed:
            failed.append(None)
            time.sleep(0.5)
            raise RuntimeError("no such part")
        copy(*arguments)

    monkeypatch.setattr(ring, "_copy", failing)
    with dgpu.enable(client, **SETTINGS):
        found = dict(dgpu.run_many("matmul", [(X, X.T), (X.T, X)], as_completed=True))
    results = [each for each in found.values() if not isinstance(each, RuntimeError)]
    assert len(found) == 2
    assert len(results) == 1
    wanted = X @ X.T if results[0].shape == (203, 203) else X.T @ X
    np.testing.assert_allclose(results[0], wanted, rtol=1e-12)
    found.clear()  # frames of the error hold a slot
    eventually(lambda: held(client) == 0)


def test_a_window_that_a_worker_does_not_open_is_closed(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, failed = windows.Windows._run, []

    async def failing(self: Any, address: str, function: Callable[..., Any], *given: Any) -> Any:
        if function.__name__ == "opened" and not failed:
            failed.append(address)
            raise windows.LostError("no such worker")
        return await run(self, address, function, *given)

    monkeypatch.setattr(windows.Windows, "_run", failing)
    monkeypatch.setattr(module, "PATIENCE", 1.0)  # no worker is lost
    with dgpu.enable(client, **SETTINGS):
        np.testing.assert_allclose(dgpu.run("matmul", X, X.T), X @ X.T, rtol=1e-12)
    assert failed
    assert held(client) == 0


def test_other_hosts_get_blocks_by_dask(
    client: Client, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nowhere(*_: Any, **__: Any) -> bool:
        return False

    monkeypatch.setattr(windows, "opened", nowhere)
    with dgpu.enable(client, **SETTINGS):
        np.testing.assert_allclose(dgpu.run("matmul", X, X.T), X @ X.T, rtol=1e-12)
    assert calls == []
    assert held(client) == 0


def test_without_windows(client: Client, calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with dgpu.enable(client, **SETTINGS):
        np.testing.assert_allclose(dgpu.run("matmul", X, X.T), X @ X.T, rtol=1e-12)
    assert calls == []


def test_an_error_leaves_nothing(client: Client) -> None:
    def refused(block: Any) -> Any:
        raise ValueError("no such block")

    def all_refused(x: Any) -> Any:
        return x.map_blocks(refused, meta=x._meta)

    with dgpu.enable(client, **SETTINGS), pytest.raises(ValueError, match="no such block"):
        dgpu.run(all_refused, X)
    eventually(lambda: held(client) == 0)


@pytest.mark.slow
@pytest.mark.parametrize("function", ["taken", "given"])
def test_a_worker_is_lost(
    client: Client, cluster: Any, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, killed = windows.Windows._call, []

    async def killing(self: Any, way: Any, called: Callable[..., Any], *arguments: Any) -> Any:
        if called.__name__ == function and not killed:
            killed.append(way.address)
            client.loop.run_in_executor(None, send_signal, client, way.address)
        return await call(self, way, called, *arguments)

    monkeypatch.setattr(windows.Windows, "_call", killing)
    with dgpu.enable(client, **SETTINGS | {"on_error": "fallback"}):
        np.testing.assert_allclose(dgpu.run("matmul", X, X.T), X @ X.T, rtol=1e-12)
    assert killed
    eventually(lambda: settled(cluster), 60)
    eventually(lambda: held(client) == 0)


@pytest.mark.slow
@pytest.mark.parametrize("by_windows", [True, False])
def test_several_calls_lose_a_worker(
    client: Client, cluster: Any, by_windows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, started = module.Cluster.start, []

    def killing(self: Any, result: Any) -> Any:
        started.append(result)
        if len(started) == 4:
            send_signal(client, min(client.scheduler_info(n_workers=-1)["workers"]))
        return start(self, result)

    monkeypatch.setattr(module.Cluster, "start", killing)
    monkeypatch.setattr(module, "LEAST", 1 if by_windows else 1 << 30)
    with dgpu.enable(client, **SETTINGS | {"on_error": "fallback", "memory_limit": "250 kiB"}):
        for found in dgpu.run_many("matmul", [(X, X.T)] * 4):
            np.testing.assert_allclose(found, X @ X.T, rtol=1e-12)
    assert len(started) > 4
    eventually(lambda: settled(cluster), 60)
    eventually(lambda: held(client) == 0)
