"""The scheduler's host is cut off for good: a named error in time, and workers that come back."""

from __future__ import annotations

import time

import pytest
from distributed import wait
from distributed.client import FutureCancelledError

from tests.cluster.observe import eventually, left_over, running
from tests.hosts.algorithms import ALGORITHMS, compute
from tests.hosts.cluster import CLIENT_TIMEOUT, TCP_TIMEOUT, HostCluster
from tests.hosts.conftest import SETTINGS
from tests.hosts.faults import BUSY, HOST, SCHEDULER, mend
from tests.hosts.network import Network

pytestmark = [pytest.mark.hosts, pytest.mark.slow, pytest.mark.timeout(200)]


def test_scheduler_is_cut_off_while_gangs_run(network: Network, cluster: HostCluster) -> None:
    """Dask's client gives up; one gang of each algorithm runs or waits."""
    with cluster.enabled(**SETTINGS) as client:
        inputs = {name: algorithm.input().persist() for name, algorithm in ALGORITHMS.items()}
        wait(list(inputs.values()))
        network.shape(HOST, BUSY)
        try:
            futures = [client.compute(ALGORITHMS[name].compute(x)) for name, x in inputs.items()]
            eventually(lambda: running(client))
            network.cut(SCHEDULER)
            began = time.monotonic()
            for future in futures:
                with pytest.raises(FutureCancelledError):
                    future.result(timeout=60)
            assert time.monotonic() - began < 4 * (TCP_TIMEOUT + CLIENT_TIMEOUT)
        finally:
            mend(network)
    with cluster.enabled(**SETTINGS) as client:
        for algorithm in ALGORITHMS.values():
            compute(client, algorithm)
        eventually(lambda: left_over(client) == 0)
