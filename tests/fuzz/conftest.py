"""One test for each tree, and for each pair of programs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
from distributed import Client

from tests.cluster.conftest import start_cluster

N_WORKERS = 3
CLUSTER_EVERY = 10
"""Every tenth tree is computed on a cluster, the others by threads."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    first = metafunc.config.getoption("seed")
    for name, option in (("tree_seed", "trees"), ("pair_seed", "pairs")):
        if name in metafunc.fixturenames:
            seeds = range(first, first + metafunc.config.getoption(option))
            metafunc.parametrize(name, seeds, ids="seed={}".format)


@pytest.fixture(scope="package")
def fuzz_client() -> Iterator[Client]:
    """A small cluster, which no test breaks; nothing uses it by default.

    While it lives, workers of this process fork: it must not outlive these tests.
    """
    with (
        start_cluster("cpu", N_WORKERS) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        client.run(warnings.simplefilter, "ignore")
        yield client
