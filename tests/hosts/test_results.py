"""Right results on three hosts of two workers, over each transport that CPUs have."""

from __future__ import annotations

from collections.abc import Iterator

import dask.array as da
import numpy as np
import pytest
from distributed import Client

from tests.cluster.observe import check, computed, transports
from tests.hosts.algorithms import ALGORITHMS, OTHERS, assert_right
from tests.hosts.cluster import six_workers
from tests.hosts.conftest import SETTINGS
from tests.hosts.network import Network

pytestmark = [pytest.mark.hosts, pytest.mark.slow, pytest.mark.timeout(100)]

RNG = np.random.default_rng(1)
A, B = RNG.random((97, 211)), RNG.random((211, 53))
PATIENT = SETTINGS | {"gang_timeout": "30s"}
"""A first stencil imports much: 8 s on one busy core."""
COMMS = {"tcp": "StreamComm", "ucx": "UcxComm", "dask": "StreamComm"}


@pytest.fixture(scope="module", params=COMMS)
def client(
    request: pytest.FixtureRequest, network: Network, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    """A client of gangs over one transport; UCX takes the processes of all hosts for one host's."""
    folder = tmp_path_factory.mktemp("hosts")
    with (
        six_workers(network, folder, UCX_TLS="tcp,self") as cluster,
        cluster.enabled(comm=request.param, **PATIENT) as client,
    ):
        yield client
        assert transports(client) == {COMMS[request.param]}


@pytest.mark.parametrize("name", [*ALGORITHMS, *OTHERS])
def test_algorithm(client: Client, name: str) -> None:
    algorithm = (ALGORITHMS | OTHERS)[name]
    result, gangs = computed(client, algorithm.compute(algorithm.input()))
    assert_right(result, algorithm.expected(algorithm.array))
    assert gangs == 1


def test_uneven_product(client: Client) -> None:
    x, y = da.from_array(A, chunks=31), da.from_array(B, chunks=31)
    assert check(client, x @ y, A @ B) == 1
