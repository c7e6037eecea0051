"""One test for each tree."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from distributed import Client, LocalCluster

from tests.cluster.observe import quiet_workers

N_WORKERS = 3
CLUSTER_EVERY = 10
"""Every tenth tree is computed on a cluster, the others by threads."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "tree_seed" in metafunc.fixturenames:
        first = metafunc.config.getoption("seed")
        seeds = range(first, first + metafunc.config.getoption("trees"))
        metafunc.parametrize("tree_seed", seeds, ids="seed={}".format)


@pytest.fixture(scope="session")
def fuzz_client() -> Iterator[Client]:
    """A small cluster, which no test breaks; nothing uses it by default."""
    with (
        LocalCluster(
            n_workers=N_WORKERS,
            threads_per_worker=1,
            dashboard_address=":0",
            preload=[quiet_workers, "import warnings; warnings.simplefilter('ignore')"],
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client
