"""A cluster of six workers on three hosts, with its scheduler and its client on two more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed import Client

from tests.hosts.cluster import WORKING, HostCluster, six_workers, started
from tests.hosts.network import Network, made

HOSTS = ("client", "sched", *WORKING)

SETTINGS = {"when": "always", "on_error": "raise", "gang_timeout": "5s", "gang_grace": "1s"}


@pytest.fixture(scope="package")
def network() -> Iterator[Network]:
    """The hosts, on which each test starts its processes."""
    with made(HOSTS) as network:
        yield network


@pytest.fixture
def empty(network: Network, tmp_path: Path) -> Iterator[HostCluster]:
    """A cluster without processes."""
    with started(network, tmp_path) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def cluster(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostCluster]:
    """The usual cluster, which tests may damage but not leave damaged."""
    with six_workers(network, tmp_path_factory.mktemp("hosts")) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: HostCluster) -> Iterator[Client]:
    with cluster.enabled(**SETTINGS) as client:
        yield client
