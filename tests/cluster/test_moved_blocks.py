"""Blocks that move to no member while a gang waits for its plan."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import wait

from tests.cluster.faults import watch_plans
from tests.cluster.observe import eventually, host, nothing_left, send_signal
from tests.cluster.test_delivery import paused
from tests.cluster.test_direct_losses import CHUNK, A

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def x(in_memory: Callable[..., da.Array]) -> da.Array:
    return in_memory(A, CHUNK)


@pytest.mark.parametrize("device", ["cpu"], indirect=True)  # it takes three workers
def test_blocks_are_lost_that_moved_to_no_member(client, cluster, on_device, monkeypatch):
    """Dask loses several blocks at once that wait for a gang, after a worker has retired."""
    last, *others = sorted(cluster.scheduler.workers)
    x = on_device(A, CHUNK).persist(workers=others)
    wait(x)
    planned: list[Any] = []

    async def slowly(run: Any) -> None:
        planned.append(run)
        await asyncio.sleep(2)

    watch_plans(monkeypatch, before=slowly)
    with paused(client, last):  # so it is no member
        z = (x @ x).persist()
        eventually(lambda: planned)
    (run,) = planned
    assert last not in run.members
    monkeypatch.undo()
    source = next(worker for worker in run.members if worker != run.holder)
    keys = [key for key, worker in run.staged[0] if worker == source]
    assert len(keys) > 1
    client.run_on_scheduler(_move, keys=keys, source=source, target=last)
    send_signal(client, last)
    np.testing.assert_allclose(host(client.compute(z).result(timeout=60)), A @ A, rtol=1e-12)
    del z
    nothing_left(client, x)


async def _move(dask_scheduler: Any, keys: list[Any], source: str, target: str) -> None:
    await dask_scheduler.gather_on_worker(target, {key: [source] for key in keys})
    await dask_scheduler.delete_worker_data(source, keys, "test")
