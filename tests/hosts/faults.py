"""The faults of a network, or of a host, that tests cause while gangs run."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.hosts.cluster import TCP_TIMEOUT, WORKING, HostCluster
from tests.hosts.network import Network

HOST = "c"
"""The host at the other end of the broken link."""

SCHEDULER = "sched"

BUSY, SLOW = "30mbit", "10mbit"
"""Rates of the link before a fault, so that gangs are in the midst of their messages, and of a slow
one: a hundredth of the usual rate."""

LIMIT = 2 * (5.0 + TCP_TIMEOUT)
"""Seconds until a result or an error: twice the limits of gangs and of Dask's connections, since
Dask may have to fetch a finished result from a lost worker."""

Fault = Callable[[Network, HostCluster], None]


def cut_for_a_while(network: Network, host: str) -> None:
    """Cut the link of a host for 5 s."""
    network.cut(host)
    time.sleep(5)
    network.mend(host)


FAULTS: dict[str, Fault] = {
    "disconnected": lambda network, cluster: network.cut(HOST),
    "disconnected for 5 s": lambda network, cluster: cut_for_a_while(network, HOST),
    "lost packets": lambda network, cluster: network.lose(HOST, 5),
    "reordered": lambda network, cluster: network.delay(HOST, 0.005, overtaking=0.3),
    "delayed": lambda network, cluster: network.delay(HOST, 0.1),  # 200 ms there and back
    "slow": lambda network, cluster: network.shape(HOST, SLOW),
    "half open": lambda network, cluster: network.lose(HOST, 100, ["to"]),
    "scheduler disconnected for 5 s": lambda network, cluster: cut_for_a_while(network, SCHEDULER),
    "same address": lambda network, cluster: cluster.restart(f"{HOST}0"),
}


def mend(network: Network) -> None:
    """End all faults."""
    for host in (*WORKING, SCHEDULER):
        network.mend(host)
