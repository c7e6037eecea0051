"""A link between hosts fails while a gang runs: the right result or a named error, in time."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import psutil
import pytest
from distributed import Client, wait

import dask_dgpu as dgpu
from dask_dgpu.errors import GangError
from tests.cluster.observe import eventually, left_over, running
from tests.hosts.algorithms import ALGORITHMS, Algorithm, assert_right
from tests.hosts.cluster import HostCluster
from tests.hosts.conftest import SETTINGS
from tests.hosts.faults import FAULTS, HOST, LIMIT, SLOW, mend
from tests.hosts.network import Network

pytestmark = [pytest.mark.hosts, pytest.mark.slow, pytest.mark.timeout(100)]

MOST_MORE = 12, 40, 150 * 2**20
"""Threads, sockets and bytes that a worker may have more than at first: communicators, buffers."""


@pytest.fixture(scope="module", autouse=True)
def nothing_leaks(network: Network, cluster: HostCluster) -> Iterator[None]:
    """Compare the workers that live to the end with what they were after a first gang."""

    def after_gangs() -> dict[int, tuple[int, int, int]]:
        with network.on("client"), cluster.client() as client, dgpu.enable(client, **SETTINGS):
            for algorithm in ALGORITHMS.values():
                compute(client, algorithm)
            return dict(client.run(census).values())

    before = after_gangs()
    yield
    after = after_gangs()
    lived = before.keys() & after.keys()
    assert len(lived) >= 2  # those of host a at least
    for pid in lived:
        assert (np.subtract(after[pid], before[pid]) <= MOST_MORE).all(), (before, after)


def census() -> tuple[int, tuple[int, int, int]]:
    """Return this process, and its threads, sockets and bytes of memory."""
    process = psutil.Process()
    sockets = len(process.net_connections("inet"))
    return process.pid, (process.num_threads(), sockets, process.memory_info().rss)


def compute(client: Client, algorithm: Algorithm) -> None:
    result = client.compute(algorithm.compute(algorithm.input())).result(timeout=60)
    assert_right(result, algorithm.expected(algorithm.array))


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("fault", FAULTS)
def test_fault(
    network: Network, cluster: HostCluster, client: Client, fault: str, name: str
) -> None:
    algorithm = ALGORITHMS[name]
    x = algorithm.input().persist()
    wait(x)
    network.shape(HOST, SLOW)  # so that the program is in the midst of its messages
    try:
        z = algorithm.compute(x)
        future = client.compute(z)
        eventually(lambda: running(client) or future.done())
        time.sleep(0.05)
        began = time.monotonic()
        FAULTS[fault](network, cluster)
        try:
            result = future.result(timeout=60)
        except GangError:
            pass
        else:
            assert_right(result, algorithm.expected(algorithm.array))
        assert time.monotonic() - began < LIMIT
        future.release()
        del x, z
    finally:
        mend(network)
    eventually(lambda: cluster.complete(client), 60)
    compute(client, algorithm)
    eventually(lambda: left_over(client) == 0)
