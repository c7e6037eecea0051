"""Blocks of a gang's result reach whoever asks for them, again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster, Status, wait

import dask_dgpu as dgpu
from dask_dgpu.errors import GangError
from tests.cluster.conftest import SETTINGS
from tests.cluster.faults import restore_blocks, slow_blocks
from tests.cluster.observe import PLUGIN, eventually, host, running
from tests.support.forked import METHOD

pytestmark = pytest.mark.cluster

N, CHUNK = 64, 32
A = np.random.default_rng(12).integers(-9, 9, (N, N))


@pytest.fixture
def x(on_device: Callable[..., da.Array]) -> da.Array:
    return on_device(A, CHUNK).persist()


def _gang_worker(dask_scheduler: Any) -> str | None:
    for run in dask_scheduler.plugins[PLUGIN].runs.values():
        ts = dask_scheduler.tasks[run.key]
        if ts.processing_on is not None:
            return str(ts.processing_on.address)
    return None


def test_paused_worker_gets_no_part_of_a_gang(client, x):
    wait(x)
    with paused(client, min(client.scheduler_info(n_workers=-1)["workers"])):
        for made in (x @ x, da.fft.fft2(x), dgpu.sum(x @ x + 1, axis=0)):
            client.compute(made).result(timeout=60)
        np.testing.assert_array_equal(host(client.compute(x @ x).result(timeout=60)), A @ A)


def test_worker_that_is_paused_while_a_gang_runs_gives_its_blocks_away(client, x):
    slow_blocks(client, 0.1)
    future = client.compute((x @ x) + 0)
    eventually(lambda: running(client))
    gang = client.run_on_scheduler(_gang_worker)
    worker = max(set(client.scheduler_info(n_workers=-1)["workers"]) - {gang})
    with paused(client, worker):
        np.testing.assert_array_equal(host(future.result(timeout=60)), A @ A)
    client.run(restore_blocks)


@contextmanager
def paused(client: Client, worker: str) -> Iterator[None]:
    """Pause a worker as its memory monitor would."""
    client.run(_pause, workers=[worker])
    eventually(lambda: client.run_on_scheduler(_status, worker=worker) == "paused")
    try:
        yield
    finally:
        client.run(_resume, workers=[worker])
        eventually(lambda: client.run_on_scheduler(_status, worker=worker) == "running")


def _pause(dask_worker: Any) -> None:
    dask_worker.periodic_callbacks["memory_monitor"].stop()
    dask_worker.status = Status.paused


def _resume(dask_worker: Any) -> None:
    dask_worker.status = Status.running
    dask_worker.periodic_callbacks["memory_monitor"].start()


def _status(worker: str, dask_scheduler: Any) -> str:
    return str(dask_scheduler.workers[worker].status.name)


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "room"), [("330MiB", False), ("480MiB", True)])
def test_workers_with_little_memory(limit: str, room: bool) -> None:
    """Loading kernels would have Dask pause or kill workers for which there is no room."""
    options = {"threads_per_worker": 1, "dashboard_address": ":0", "memory_limit": limit}
    with (
        dask.config.set({METHOD: "spawn"}),
        LocalCluster(n_workers=2, **options) as cluster,
        Client(cluster) as client,
        dgpu.enable(client, device="cpu", **SETTINGS) as enabled,
    ):
        assert (enabled.optimizer.facts.device_memory > 0) == room
        y = da.fft.fft2(da.from_array(A, chunks=(CHUNK, N)))
        found = client.compute(y).result(timeout=60)
        np.testing.assert_allclose(found, np.fft.fft2(A), atol=1e-9)
        explained = dgpu.explain(y)
        assert bool(explained.rewritten) == room
        assert room or "0 B may be used" in explained.declined[0].reason


@pytest.mark.slow
@pytest.mark.parametrize("alone", [False, True])
def test_staged_blocks_pause_their_worker(client, x, alone):
    """Others run the tasks of the worker; if there are none, the gang fails in one sentence."""
    first, *others = sorted(client.scheduler_info(n_workers=-1)["workers"])
    settings = SETTINGS | {"gang_grace": "1s", "gang_timeout": "6s"}
    wait(x)

    def slowly(block: Any) -> Any:
        time.sleep(0.3 if block.size else 0)
        return block + 1

    with dgpu.enable(client, **settings):
        with dask.annotate(dgpu=False):  # by tasks of Dask, several on each worker
            y = x.rechunk(CHUNK // 4).map_blocks(slowly, dtype=x.dtype)
        future = client.compute(x @ y)
        eventually(lambda: any(client.run(_staged, workers=[first]).values()))
        with ExitStack() as stack:
            for worker in (first, *others) if alone else (first,):
                stack.enter_context(paused(client, worker))
            if alone:
                with pytest.raises(GangError, match="cannot begin: Dask has paused"):
                    future.result(timeout=60)
            else:
                np.testing.assert_array_equal(host(future.result(timeout=60)), A @ (A + 1))


def _staged(dask_worker: Any) -> int:
    return len(dask_worker.plugins[PLUGIN].staged)
