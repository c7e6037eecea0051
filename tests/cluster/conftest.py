"""Clusters on which gangs run: four processes with NumPy, or one process a GPU with CuPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster, wait

import dask_dgpu as dgpu
from tests.cluster.observe import (
    count_tasks,
    count_tasks_no_more,
    counted_tasks,
    eventually,
    quiet_workers,
    settled,
    starting,
)
from tests.support.calls import Counting
from tests.support.forked import METHOD, preload

SETTINGS = {"when": "always", "on_error": "raise", "gang_timeout": "20s", "gang_grace": "5s"}
CUDA = pytest.param("cuda", marks=pytest.mark.multigpu)


@contextmanager
def start_cluster(device: str, n_workers: int = 4) -> Iterator[Any]:
    """Start worker processes; those with NumPy fork from one that has imported everything."""
    if device == "cuda":
        from dask_cuda import LocalCUDACluster

        with LocalCUDACluster(
            rmm_pool_size="4GB",
            rmm_allocator_external_lib_list="cupy",
            dashboard_address=":0",
            preload=[quiet_workers],
        ) as cluster:
            yield cluster
            eventually(lambda: not starting(cluster), 60)
        return
    with forked_cluster(n_workers) as cluster:
        yield cluster


@contextmanager
def forked_cluster(n_workers: int, **options: Any) -> Iterator[Any]:
    """Start workers on CPUs from a server that has imported what they need."""
    with dask.config.set({METHOD: "forkserver"}):
        preload()
        with LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            dashboard_address=":0",
            preload=[quiet_workers],
            **options,
        ) as cluster:
            yield cluster
            # Dask fails to close a worker that is just starting on a busy machine
            eventually(lambda: not starting(cluster), 60)


@pytest.fixture(autouse=True)
def patience() -> Iterator[None]:
    """Do not give up a worker that, 15 s after an earlier loss, is just not back again."""
    with dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"}):
        yield


@pytest.fixture(scope="package", params=["cpu", CUDA])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="package")
def cluster(device: str) -> Iterator[Any]:
    """One cluster for all tests that leave it as it was; the others start their own."""
    with start_cluster(device) as cluster:
        yield cluster


@pytest.fixture
def no_stealing(cluster: Any) -> Iterator[None]:
    """On a busy machine a worker without work may steal some of these tasks."""
    with Client(cluster, set_as_default=False) as client:
        client.run_on_scheduler(_steal, yes=False)
        yield
        client.run_on_scheduler(_steal, yes=True)


async def _steal(dask_scheduler: Any, yes: bool) -> None:
    stealing = dask_scheduler.extensions["stealing"]
    await (stealing.start() if yes else stealing.stop())


@pytest.fixture
def client(cluster: Any) -> Iterator[Client]:
    eventually(lambda: settled(cluster), 60)  # an earlier test may have killed a worker
    with Client(cluster) as client, dgpu.enable(client, **SETTINGS):
        yield client


@pytest.fixture
def on_device(device: str) -> Callable[..., da.Array]:
    """Return a function that makes a Dask array of the device's kind from a NumPy array."""

    def make(array: np.ndarray[Any, Any], chunks: Any) -> da.Array:
        x = da.from_array(array, chunks=chunks)
        if device == "cpu":
            return x
        import cupy

        return x.map_blocks(cupy.asarray)

    return make


@pytest.fixture
def in_memory(client: Client, on_device: Callable[..., da.Array]) -> Callable[..., da.Array]:
    """Return a function that does the same, and waits for the blocks on the workers."""

    def make(array: np.ndarray[Any, Any], chunks: Any) -> da.Array:
        x = on_device(array, chunks).persist()
        wait(x)
        return x

    return make


@pytest.fixture
def tasks_run(client: Client) -> Iterator[Callable[[], int]]:
    """Return a function that counts the tasks that workers got to run."""
    client.run(count_tasks)
    yield lambda: sum(client.run(counted_tasks).values())
    client.run(count_tasks_no_more)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Counting:
    """Count the graphs whose layers are created; the scheduler is in this process."""
    from graph_opt.dask_graph.sent import SentGraph

    counting = Counting(SentGraph.open)

    def count(self: SentGraph, **options: bool) -> Any:
        return counting(self, **options)

    monkeypatch.setattr(SentGraph, "open", count)
    return counting
