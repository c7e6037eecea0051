"""Rechunks on a cluster: rows to columns, transposed, before products, and with workers lost."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, Future, wait

import dask_dgpu as dgpu
from tests.cluster.conftest import SETTINGS
from tests.cluster.losses import Losses
from tests.cluster.observe import (
    counted,
    eventually,
    host,
    launched_runs,
    left_over,
    running,
    send_signal,
)

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

RNG = np.random.default_rng(7)
A = RNG.integers(-9, 9, (61, 47))
CUBE = RNG.random((7, 11, 13)).astype("complex64")


@pytest.fixture
def x(on_device):
    return on_device(A, (61, 7))


def gangs(client: Client, z: da.Array, wanted: Any) -> int:
    """Compare a result with what it must be; return how many gangs it took."""
    before = launched_runs(client)
    result = z.compute()
    np.testing.assert_array_equal(host(result), wanted)
    assert (result.dtype, result.shape) == (z.dtype, z.shape)
    assert type(result) is type(z._meta)
    eventually(lambda: left_over(client) == 0)
    return launched_runs(client) - before


@pytest.mark.parametrize("method", ["tasks", "p2p"])
def test_rows_to_columns(client, x, method):
    with dask.config.set({"array.rechunk.method": method}):
        assert gangs(client, x.rechunk((9, 47)), A) == 1
        assert gangs(client, x.T.rechunk((47, 9)), A.T) == 1


def test_any_axes(client, on_device):
    x = on_device(CUBE, (7, 3, 4))
    for axes in [(0, 1, 2), (2, 0, 1), (1, 0, 2)]:
        z = x.transpose(axes).rechunk((5, -1, 3))
        assert gangs(client, z, CUBE.transpose(axes)) == 1


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "float16", "float64", "complex128"])
def test_dtypes(client, on_device, dtype):
    a = A.astype(dtype)
    assert gangs(client, on_device(a, (61, 7)).rechunk((9, 47)), a) == 1


def test_operands_of_different_chunks(client, on_device):
    a = A[:47]
    x = on_device(a, (47, 7))
    assert gangs(client, x + x.T, a + a.T) == 1
    assert gangs(client, x + on_device(a, (11, 47)), a + a) == 1


def test_a_part(client, x):
    assert gangs(client, x.rechunk((9, 47))[:10], A[:10]) == 1
    assert gangs(client, x.rechunk((61, 9))[:, 20:21] * 2, A[:, 20:21] * 2) == 1


def test_before_and_after_a_product(client, x):
    z = (x.rechunk((9, 10)) @ x.T.rechunk((10, 61))).rechunk(7)
    assert gangs(client, z, A @ A.T) == 1


def test_chunks_of_length_zero(client, x):
    assert gangs(client, x.rechunk(((0, 40, 0, 21), 47)), A) == 1


def test_fewer_blocks_than_workers(client, on_device):
    assert gangs(client, on_device(A, -1).rechunk((31, 47)), A) == 1
    assert gangs(client, on_device(A, (31, 47)).rechunk(-1), A) == 1


def test_tasks_submitted(client, x):
    z, tasks, blocks, ranks = counted(client, lambda x: x.rechunk((9, 47)), x)
    assert blocks < tasks <= blocks + 2 * ranks + 2
    np.testing.assert_array_equal(host(z.compute()), A)


def test_every_worker_ends_with_its_share(client, on_device):
    x = on_device(RNG.random((64, 64)), (64, 4)).persist()
    z = x.rechunk((4, 64)).persist()
    wait(z)
    holders = [worker for (worker, *_) in client.who_has(z).values()]
    workers = client.scheduler_info(n_workers=-1)["workers"]
    assert {holders.count(worker) for worker in workers} == {16 // len(workers)}


def test_a_subset_of_workers(client, x):
    chosen = sorted(client.scheduler_info(n_workers=-1)["workers"])[:2]
    z = x.rechunk((9, 47)).persist(workers=chosen)
    wait(z)
    assert {worker for workers in client.who_has(z).values() for worker in workers} <= set(chosen)
    np.testing.assert_array_equal(host(z.compute()), A)


@pytest.mark.slow
class TestLosses(Losses):
    """A worker is lost, or the caller goes away."""

    def any_worker(self, client: Client) -> str:
        return random.Random(3).choice(sorted(client.scheduler_info(n_workers=-1)["workers"]))

    def test_killed_in_the_collective(self, client, cluster, x):
        gangs(client, x.rechunk((9, 47)), A)
        self.slow(client, 1.0)
        future = client.compute(x.rechunk((9, 47)) * 1)
        eventually(lambda: running(client))
        send_signal(client, self.any_worker(client))
        np.testing.assert_array_equal(host(future.result(timeout=60)), A)
        eventually(lambda: left_over(client) == 0)

    @pytest.mark.slow
    def test_killed_after_it(self, client, cluster, x):
        z = x.rechunk((9, 47)).persist()
        wait(z)
        send_signal(client, self.any_worker(client))
        np.testing.assert_array_equal(host(client.compute(z + 0).result(timeout=60)), A)

    @pytest.mark.slow
    def test_cancelled(self, client, cluster, x):
        gangs(client, x.rechunk((9, 47)), A)
        self.slow(client, 1.0)
        future = client.compute(x.rechunk((9, 47)) * 1)
        eventually(lambda: running(client))
        future.cancel()
        eventually(lambda: left_over(client) == 0)
        gangs(client, x.rechunk((9, 47)) + 0, A)

    @pytest.mark.slow
    @pytest.mark.timeout(600)
    def test_kills_at_random_moments(self, client, cluster, device, x):
        """Gangs that wait for gangs: three rechunks and a product."""
        alone = dgpu.enable(client, **SETTINGS, regions=False)

        def submit() -> Future:
            z = (x.rechunk((9, 10)) @ x.T.rechunk((10, 61))).rechunk(7)
            with dask.config.set(array_optimize=alone.optimizer):
                return client.compute(z * 1)

        for result in self.killed_at_random(
            client, cluster, device, submit, kills=15, seed=11, seconds=1.2
        ):
            np.testing.assert_array_equal(result, A @ A.T)


def test_what_does_not_fit_the_workers_is_left_to_dask(client, device):
    """Dask may spill blocks to disk, a gang holds them all."""
    with dgpu.enable(client, **SETTINGS) as state:
        memory = state.optimizer.facts.device_memory
        if device == "cpu":
            workers = client.scheduler_info(n_workers=-1)["workers"].values()
            assert 0 < memory < min(worker["memory_limit"] for worker in workers)
        side = int((memory / 8) ** 0.5) // 64 * 64 * 2  # as much as four workers have
        x = da.ones((side, side), chunks=(side, side // 8)).rechunk((side // 8, side))
        (declined,) = dgpu.explain(x).declined
    assert "may be used" in declined.reason or "on the host" in declined.reason


def test_explained(client, x):
    (piece,) = dgpu.explain(x.rechunk((9, 47))).to_dict()["rewritten"]
    assert piece["tasks"] == 7 + 7 + 1
    with dgpu.enable(client, **(SETTINGS | {"when": "cheaper"})) as session:
        facts = replace(session.optimizer.facts, figures=(("task_seconds", 1e-9),))
        quick = replace(session.optimizer, facts=facts)
        with dask.config.set(array_optimize=quick):
            (declined,) = dgpu.explain(x.rechunk((61, 1))).declined
        assert "plain Dask is predicted to be quicker" in declined.reason
