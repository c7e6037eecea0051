"""Enabled without a cluster, or for another one than computes: Dask computes, and clients warn."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.delayed import delayed
from distributed import Client, LocalCluster

import dask_dgpu as dgpu
from tests.cluster.conftest import forked_cluster
from tests.cluster.observe import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

A = np.arange(144.0).reshape(12, 12)
LEFT = "dask_dgpu left a graph to Dask on this cluster: dask_dgpu is enabled "


@pytest.fixture(scope="module")
def other() -> Iterator[Client]:
    with forked_cluster(2) as cluster, Client(cluster, set_as_default=False) as client:
        yield client


@pytest.fixture
def enabled_elsewhere() -> Iterator[None]:
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
        dgpu.enable(client, when="always", on_error="raise"),
    ):
        yield


@pytest.fixture
def enabled_before() -> Iterator[None]:
    with dgpu.enable(when="always", on_error="raise"):
        yield


def product() -> da.Array:
    x = da.from_array(A, chunks=4)
    return x @ x


def warned(compute: Callable[[], Any], text: str) -> Any:
    """Return what a function returns, after its warning has come."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        value = compute()
        eventually(lambda: [each for each in caught if text in str(each.message)])
    return value


@pytest.mark.parametrize("fixture", ["enabled_before", "enabled_elsewhere"])
def test_dask_computes_and_the_client_warns(
    request: pytest.FixtureRequest, other: Client, fixture: str
) -> None:
    request.getfixturevalue(fixture)
    how = "without a cluster" if fixture == "enabled_before" else "for another one"
    for compute in (
        lambda: other.compute(product()).result(),
        lambda: product().compute(scheduler=other),
        lambda: other.persist(product()).compute(scheduler=other),
    ):
        np.testing.assert_array_equal(warned(compute, LEFT + how), A @ A)
    found = other.run(lambda dask_worker: dask_worker.plugins.keys())
    assert all("dask-dgpu" not in plugins for plugins in found.values())


@pytest.mark.usefixtures("enabled_before")
def test_a_gang_of_one_worker_is_no_secret(other: Client) -> None:
    with dask.config.set(scheduler=other):
        value = warned(
            lambda: delayed(np.sum)(product()).compute(),
            "a worker without the dask_dgpu plugin computes a gang alone",
        )
    assert value == (A @ A).sum()


def test_the_cluster_that_computes_is_enabled(other: Client) -> None:
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address=":0"),
        dgpu.enable(other, when="always", on_error="raise"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        np.testing.assert_array_equal(product().compute(scheduler=other), A @ A)
