"""A link between hosts fails while a gang runs: the right result or a named error, in time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import psutil
import pytest
from distributed import Client, wait

from dask_dgpu.errors import GangError
from tests.cluster.observe import eventually, left_over, running
from tests.hosts.algorithms import ALGORITHMS, assert_right, compute
from tests.hosts.cluster import HostCluster
from tests.hosts.conftest import SETTINGS
from tests.hosts.faults import BUSY, FAULTS, HOST, LIMIT, mend
from tests.hosts.network import Network

Counts = tuple[int, int, int]
"""Threads, sockets and bytes of memory."""

pytestmark = [pytest.mark.hosts, pytest.mark.slow, pytest.mark.timeout(100)]

MOST_MORE = 20, 40, 150 * 2**20
"""Threads, sockets and bytes that a worker may have more than at first.

It keeps four communicators, of up to five threads each, and buffers.
"""


@pytest.fixture(scope="module", autouse=True)
def nothing_leaks(network: Network, cluster: HostCluster) -> Iterator[None]:
    """Compare the workers that live to the end with what they were after a first gang."""
    before = after_gangs(cluster)
    yield
    assert len(before.keys() & after_gangs(cluster).keys()) >= 2  # those of host a
    with network.on("client"), cluster.client() as client:
        with suppress(AssertionError):
            eventually(lambda: all(map(is_little, more(before, counted(client)))), 20)
        assert [found for found in more(before, counted(client)) if not is_little(found)] == []


def after_gangs(cluster: HostCluster) -> dict[int, Counts]:
    """Run a gang of each algorithm; return the counts of all workers."""
    with cluster.enabled(**SETTINGS) as client:
        for algorithm in ALGORITHMS.values():
            compute(client, algorithm)
        return counted(client)


def counted(client: Client) -> dict[int, Counts]:
    """Return the threads, sockets and bytes of each worker, by its process."""
    return dict(client.run(census).values())


def more(before: dict[int, Counts], after: dict[int, Counts]) -> list[Counts]:
    """Return what workers have more than before."""
    pairs = [(after[pid], before[pid]) for pid in before.keys() & after.keys()]
    return [tuple(int(n) for n in np.subtract(*pair)) for pair in pairs]


def is_little(counts: Counts) -> bool:
    """Whether so many more are no leak."""
    return bool(np.all(np.less_equal(counts, MOST_MORE)))


def census() -> tuple[int, Counts]:
    """Return this process, and its threads, sockets and bytes of memory."""
    process = psutil.Process()
    sockets = len(process.net_connections("inet"))
    return process.pid, (process.num_threads(), sockets, process.memory_info().rss)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("fault", FAULTS)
def test_fault(
    network: Network, cluster: HostCluster, client: Client, fault: str, name: str
) -> None:
    algorithm = ALGORITHMS[name]
    x = algorithm.input().persist()
    wait(x)
    network.shape(HOST, BUSY)
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
