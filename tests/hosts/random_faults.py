"""Random faults of a network, one after the other, and what became of the gang that each hit.

``benchmarks/hosts_faults.py`` causes a hundred in a row.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from distributed import Client, wait

from tests.cluster.observe import eventually, left_over, running
from tests.hosts.algorithms import ALGORITHMS, OTHERS, Algorithm, assert_right
from tests.hosts.cluster import WORKING, HostCluster
from tests.hosts.faults import LIMIT, SCHEDULER, mend
from tests.hosts.network import Network

RATE = "20mbit"
"""Of all links, so that gangs take long enough to be hit."""

LONGEST = 6.0
"""Seconds of a fault: less than Dask's time limit for connections."""


@dataclass(frozen=True)
class Outcome:
    """What a fault did: ``end`` is ``right``, or the error's text."""

    algorithm: str
    fault: str
    host: str
    after: float
    lasted: float
    end: str
    seconds: float

    @property
    def good(self) -> bool:
        """Whether it is the right result or a ``GangError``, in time."""
        return (self.end == "right" or self.end.startswith("GangError")) and self.seconds < LIMIT


def cause(chance: random.Random, network: Network, cluster: HostCluster) -> tuple[str, str]:
    """Begin a random fault; return its name and host."""
    host = chance.choice((*WORKING, SCHEDULER))
    fault = chance.choice(("cut", "lose", "half open", "delay", "reorder", "slow", "restart"))
    if fault == "cut":
        network.cut(host)
    elif fault == "lose":
        network.lose(host, chance.uniform(1, 30))
    elif fault == "half open":
        network.lose(host, 100, [chance.choice(("to", "from"))])
    elif fault == "delay":
        network.delay(host, chance.uniform(0.01, 0.3))
    elif fault == "reorder":
        network.delay(host, chance.uniform(0.002, 0.05), overtaking=chance.uniform(0.1, 0.9))
    elif fault == "slow":
        network.shape(host, f"{chance.choice((1, 3, 10))}mbit")
    else:
        host = chance.choice(WORKING)
        cluster.restart(f"{host}{chance.randrange(2)}")
    return fault, host


def hit(chance: random.Random, network: Network, cluster: HostCluster, client: Client) -> Outcome:
    """Compute with a random algorithm, cause a fault meanwhile, and wait for the end."""
    name, algorithm = chance.choice(list((ALGORITHMS | OTHERS).items()))
    x = algorithm.input().persist()
    wait(x)
    after, lasts = chance.uniform(0, 0.5), chance.uniform(0.1, LONGEST)
    for host in WORKING:
        network.shape(host, RATE)
    future = client.compute(algorithm.compute(x))
    eventually(lambda: running(client) or future.done())
    time.sleep(after)
    began = time.monotonic()
    fault, host = cause(chance, network, cluster)
    time.sleep(lasts)
    mend(network)
    end = end_of(future, algorithm)
    seconds = time.monotonic() - began - lasts
    future.release()  # an error's traceback may keep it
    return Outcome(name, fault, host, after, lasts, end, seconds)


def end_of(future: Any, algorithm: Algorithm) -> str:
    """Wait for a result; return ``right``, or what was wrong."""
    try:
        assert_right(future.result(timeout=2 * LIMIT), algorithm.expected(algorithm.array))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "right"


def outcomes(
    network: Network, cluster: HostCluster, client: Client, count: int, seed: int
) -> Iterator[Outcome]:
    """Cause faults and yield what became of each gang; everything works in between."""
    chance = random.Random(seed)
    for _ in range(count):
        yield hit(chance, network, cluster, client)
        eventually(lambda: cluster.complete(client), 60)
        eventually(lambda: left_over(client) == 0, 60)
