"""Some of the random faults of which a long run has a hundred."""

from __future__ import annotations

import pytest
from distributed import Client

from tests.hosts.cluster import HostCluster
from tests.hosts.network import Network
from tests.hosts.random_faults import outcomes

pytestmark = [pytest.mark.hosts, pytest.mark.slow, pytest.mark.timeout(200)]


def test_random_faults(network: Network, cluster: HostCluster, client: Client) -> None:
    found = list(outcomes(network, cluster, client, count=5, seed=2))
    assert all(outcome.good for outcome in found), found
