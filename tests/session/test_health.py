"""The health of a cluster that is not enabled; ``tests/cluster`` has that of enabled ones."""

from __future__ import annotations

import pytest
from distributed import Client, LocalCluster

import dask_dgpu as dgpu


@pytest.mark.cluster
def test_workers_without_the_plugin_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """And they log nothing: they are not asked."""
    options = {"processes": False, "threads_per_worker": 1, "dashboard_address": ":0"}
    with LocalCluster(n_workers=2, **options) as cluster, Client(cluster) as client:
        health = dgpu.check_health(client)
        assert len(health.workers) == 2
    assert set(health.workers.values()) == {
        "has no dask_dgpu plugin; call dask_dgpu.enable(client)"
    }
    assert not health.ok
    assert "dgpu_examine" not in caplog.text
