"""``Client.restart`` leaves nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import dask.array as da
import pytest
from distributed import Client, LocalCluster

import dask_dgpu as dgpu
from dask_dgpu.planner.optimizer import GraphOptimizer
from tests.cluster.conftest import SETTINGS
from tests.cluster.observe import eventually

pytestmark = pytest.mark.cluster


@pytest.fixture
def client() -> Iterator[Client]:
    options = {"processes": False, "dashboard_address": ":0", "silence_logs": 50}
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, **options) as cluster,
        Client(cluster) as client,
        dgpu.enable(client, device="cpu", **SETTINGS),
    ):
        yield client


def test_graph_that_is_read_meanwhile_is_dropped(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, go_on = threading.Event(), threading.Event()
    optimize = GraphOptimizer.__call__

    def late(self: GraphOptimizer, *args: Any, **kwargs: Any) -> Any:
        reading.set()
        assert go_on.wait(60)
        return optimize(self, *args, **kwargs)

    monkeypatch.setattr(GraphOptimizer, "__call__", late)
    x = da.ones((8, 8), chunks=4)
    z = (x @ x).persist()
    assert reading.wait(60)
    client.restart(wait_for_workers=False, timeout=60)
    go_on.set()
    scheduler = client.cluster.scheduler
    eventually(lambda: scheduler._active_graph_updates == 0)
    eventually(lambda: not scheduler.tasks)
    assert not scheduler.unrunnable
    assert not scheduler.clients[client.id].wants_what
    del z
