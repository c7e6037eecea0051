"""Blocks in memory: one task for those of a worker, also for known gangs and after losses."""

from __future__ import annotations

from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client, wait

from tests.cluster.losses import Losses
from tests.cluster.observe import counted, eventually, host, left_over, running, send_signal

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

A, B = (np.random.default_rng(seed).integers(-9, 9, (60, 60)) for seed in range(2))


@pytest.fixture
def operands(client: Client, on_device: Any) -> Any:
    found = dask.persist(on_device(A, (10, 10)), on_device(B, (10, 10)))
    wait(found)
    return found


def test_a_stack_of_products_has_few_tasks(client, on_device):
    x, y = (on_device(values.reshape(36, 10, 10), (1, 10, 10)) for values in (A, B))
    z, tasks, _, ranks = counted(client, lambda x, y: x @ y, x, y)
    assert tasks <= 36 + ranks + 1
    np.testing.assert_array_equal(host(z.compute()), A.reshape(36, 10, 10) @ B.reshape(36, 10, 10))


def test_a_known_gang_and_blocks_that_moved(client, cluster, operands):
    """The gang is in memory, then its inputs are on other workers: Dask sees the same tasks."""
    x, y = operands
    z = (x @ y).persist()
    wait(z)
    client.replicate([x, y], n=2)
    again = x @ y
    np.testing.assert_array_equal(host(again.compute()), A @ B)
    np.testing.assert_array_equal(host((again + 1).compute()), A @ B + 1)
    del z, again
    eventually(lambda: left_over(client) == 0)
    assert "run_spec" not in str(client.get_scheduler_logs(n=200))


class TestLosses(Losses):
    """A worker is lost, with its group of blocks."""

    @pytest.mark.slow
    @pytest.mark.parametrize("seconds", [0.0, 0.5])
    def test_killed(self, client, cluster, operands, seconds):
        x, y = operands
        self.slow(client, seconds)
        future = client.compute((x @ y) * 1)
        if seconds:
            eventually(lambda: running(client))
        send_signal(client, sorted(cluster.scheduler.workers)[0])
        np.testing.assert_array_equal(host(future.result(timeout=100)), A @ B)
        del future
        eventually(lambda: left_over(client) == 0)
