"""Workers on two addresses of this machine are ranks on two hosts."""

from __future__ import annotations

import sys
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, SpecCluster
from distributed.scheduler import Scheduler

import dask_dgpu as dgpu
from dask_dgpu.cost import ClusterConfig
from tests.cluster.faults import watch_plans

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is an address on Linux only"),
]

ADDRESSES = ["127.0.0.1", "127.0.0.2", "127.0.0.1", "127.0.0.2"]
SETTINGS = {"when": "always", "on_error": "raise"}


def test_products_transforms_and_sums_on_two_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts: list[tuple[int, ...]] = []

    def note(run: Any) -> None:
        nodes = run.launch.program.numbered
        plans = run.planned.collectives.items()
        hosts.extend(each.plan.hosts for at, each in plans if nodes[at].operation == "matmul")

    watch_plans(monkeypatch, after=note)
    scheduler = {"cls": Scheduler, "options": {"dashboard_address": ":0", "host": "127.0.0.1"}}
    workers = {
        at: {"cls": "distributed.nanny.Nanny", "options": {"nthreads": 1, "host": host}}
        for at, host in enumerate(ADDRESSES)
    }
    with (
        SpecCluster(scheduler=scheduler, workers=workers) as cluster,
        Client(cluster) as client,
        dgpu.enable(client, **SETTINGS, cost_measure=False) as session,
    ):
        facts = session.optimizer.facts
        assert facts.hosts == (2, 2)
        measured = {"host_bandwidth", "bandwidth"}
        for _ in range(3):  # a busy machine may not answer in time
            config = ClusterConfig.detect(client, again=True)
            if measured <= {*config.machine.measured}:
                break
        assert measured <= {*config.machine.measured}
        assert "host_bandwidth" in str(config)
        # links that are slower, so that the structure of hosts is used
        slow = dict(config.facts.figures) | {"host_bandwidth": 1e6}
        client.sync(client.scheduler.dgpu_rates, kind=facts.kind, figures=slow)
        whole = np.random.default_rng(0).integers(-9, 9, (60, 60)).astype(float)
        x = da.from_array(whole, chunks=(15, 60))
        np.testing.assert_array_equal((x @ x.T).compute(), whole @ whole.T)
        found = da.fft.fft2(x.astype(complex)).compute()
        np.testing.assert_allclose(found, np.fft.fft2(whole), atol=1e-10)
        np.testing.assert_array_equal(x.rechunk((60, 7)).compute(), whole)
        total = dgpu.sum(x, axis=0, method="reproducible").compute()
        np.testing.assert_array_equal(total, whole.sum(axis=0))
    assert hosts
    assert all(each == (2, 2) for each in hosts)
