"""Host arrays on a GPU of which another process takes the memory in mid-program."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dask_dgpu as dgpu
from dask_dgpu.batches.executor import _Work
from dask_dgpu.errors import DgpuError
from tests.cluster.conftest import SETTINGS
from tests.cluster.observe import eventually

pytestmark = [pytest.mark.multigpu, pytest.mark.slow, pytest.mark.timeout(240)]

X = np.random.default_rng(7).integers(-9, 10, (6000, 6000)).astype("float64")
ALL_BUT = 300 << 20
GREEDY = f"""
import cupy
free, _ = cupy.cuda.runtime.memGetInfo()
memory = cupy.cuda.runtime.malloc(free - {ALL_BUT})
print("held", flush=True)
input()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from dask_cuda import LocalCUDACluster

    with LocalCUDACluster(n_workers=1, dashboard_address=":0") as cluster:
        yield cluster


@pytest.fixture
def client(cluster: Any) -> Iterator[Client]:
    with Client(cluster) as client:
        yield client


@contextmanager
def greedy(client: Client) -> Iterator[None]:
    """Another process with all memory of the worker's GPU but for a little."""
    (device,) = client.run(lambda: os.environ["CUDA_VISIBLE_DEVICES"]).values()
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": device.split(",")[0]}
    command = [sys.executable, "-c", GREEDY]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield
        finally:
            process.communicate("\n", timeout=30)


def free_all(client: Client) -> None:
    def free() -> None:
        import cupy

        cupy.get_default_memory_pool().free_all_blocks()

    client.run(free)


def limited(client: Client) -> Any:
    settings = {**SETTINGS, "memory_limit": "4 GiB", "memory_safety_margin": 0}
    return dgpu.enable(client, **settings)


def test_memory_that_another_process_keeps_ends_in_one_sentence(client: Client) -> None:
    """Other results survive, and the same call is right once the memory is free again."""
    with limited(client):
        other = client.scatter(np.arange(5.0))
        with greedy(client):
            with pytest.raises(DgpuError, match="ran out of memory twice") as caught:
                dgpu.run("matmul", X, X, progress=False)
            assert "\n" not in str(caught.value)
        del caught
        np.testing.assert_array_equal(dgpu.run("matmul", X, X, progress=False), X @ X)
        np.testing.assert_array_equal(other.result(), np.arange(5.0))


def test_memory_that_is_free_again_gives_the_right_result(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends while the call is planned again."""
    free_all(client)
    failed: list[type[Exception]] = []
    run = _Work.run

    def first_beside_another(self: _Work, *arguments: Any) -> None:
        if failed:
            return run(self, *arguments)
        with greedy(client):
            try:
                return run(self, *arguments)
            except Exception as error:
                failed.append(type(error))
                raise

    monkeypatch.setattr(_Work, "run", first_beside_another)
    with limited(client):
        found = dgpu.run("matmul", X, X, progress=False)
    np.testing.assert_array_equal(found, X @ X)
    assert len(failed) == 1
    eventually(lambda: not client.futures)
