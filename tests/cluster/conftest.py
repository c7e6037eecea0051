"""Clusters on which gangs run: four processes with NumPy, or one process a GPU with CuPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

import dask_dgpu as dgpu
from tests.cluster.observe import quiet_workers

SETTINGS = {"when": "always", "on_error": "raise", "gang_timeout": "20s", "gang_grace": "5s"}
CUDA = pytest.param("cuda", marks=pytest.mark.multigpu)


def start_cluster(device: str, n_workers: int = 4) -> Any:
    if device == "cuda":
        from dask_cuda import LocalCUDACluster

        return LocalCUDACluster(
            rmm_pool_size="4GB",
            rmm_allocator_external_lib_list="cupy",
            dashboard_address=":0",
            preload=[quiet_workers],
        )
    return LocalCluster(
        n_workers=n_workers, threads_per_worker=1, dashboard_address=":0", preload=[quiet_workers]
    )


@pytest.fixture(autouse=True)
def patience() -> Iterator[None]:
    """Do not give up a worker that, 15 s after an earlier loss, is just not back again."""
    with dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"}):
        yield


@pytest.fixture(scope="module", params=["cpu", CUDA])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def cluster(device: str) -> Iterator[Any]:
    with start_cluster(device) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: Any) -> Iterator[Client]:
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
