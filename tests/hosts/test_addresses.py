"""Gangs on hosts with several interfaces, names that few resolve, and IPv6."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest

from tests.cluster.observe import check
from tests.hosts.cluster import WORKING, HostCluster
from tests.hosts.conftest import SETTINGS
from tests.hosts.network import Network

pytestmark = [pytest.mark.hosts, pytest.mark.slow, pytest.mark.timeout(120)]

A = np.random.default_rng(2).random((61, 47))


def multiply(cluster: HostCluster) -> None:
    """Compute a product on all workers."""
    with cluster.enabled(**SETTINGS) as client:
        x = da.from_array(A, chunks=11)
        assert check(client, x @ x.T, A @ A.T) == 1


def test_own_names_that_mean_loopback(network: Network, empty: HostCluster) -> None:
    """The client knows no name at all."""
    names = {host: f"{network.ip(host)} node-{host}\n" for host in WORKING}
    empty.start_scheduler("sched", network.ip("sched"), "".join(names.values()))
    for host in WORKING:
        others = "".join(line for each, line in names.items() if each != host)
        empty.start_worker(
            host,
            host,
            f"127.0.0.1 localhost\n127.0.1.1 node-{host}\n{others}",
            host="0.0.0.0",
            port=4000,
            contact_address=f"tcp://node-{host}:4000",
        )
    multiply(empty)


def test_ipv6(network: Network, empty: HostCluster) -> None:
    empty.start_scheduler("sched", f"[{network.ip6('sched')}]")
    for host in WORKING:
        empty.start_worker(host, host, host=f"[{network.ip6(host)}]")
    multiply(empty)


def test_a_chosen_interface(network: Network, empty: HostCluster) -> None:
    """Of each host's two interfaces others reach one."""
    empty.start_scheduler("sched", network.ip("sched"))
    for host in WORKING:
        empty.start_worker(host, host, interface="eth0")
    multiply(empty)
