"""Gangs whose ranks talk over UCX."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dask_dgpu as dgpu
from tests.cluster.conftest import SETTINGS, start_cluster
from tests.cluster.faults import slow_blocks
from tests.cluster.observe import (
    eventually,
    has_both_times,
    host,
    left_over,
    running,
    send_signal,
    transports,
)

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

RNG = np.random.default_rng(8)
A = RNG.integers(-9, 9, (307, 211))
B = RNG.integers(-9, 9, (211, 190))


@pytest.fixture
def cluster(device: str) -> Iterator[Any]:
    """A cluster that the test may damage."""
    with start_cluster(device, n_workers=3) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: Any) -> Iterator[Client]:
    with Client(cluster) as client, dgpu.enable(client, comm="ucx", **SETTINGS):
        yield client


@pytest.mark.slow
def test_product_and_loss_of_a_worker(client, on_device):
    x, y = on_device(A, 60), on_device(B, 50)
    np.testing.assert_array_equal(host((x @ y).compute()), A @ B)
    assert transports(client) == {"UcxComm"}

    slow_blocks(client, 0.3)
    future = client.compute((x @ y) * 1)
    eventually(lambda: running(client))
    send_signal(client, sorted(client.scheduler_info()["workers"])[1])
    np.testing.assert_array_equal(host(future.result(timeout=60)), A @ B)
    np.testing.assert_array_equal(host((x @ y).compute()), A @ B)
    eventually(lambda: left_over(client) == 0)


def test_each_step_has_both_times(client, on_device):
    y = on_device(A, 60) @ on_device(B, 50)
    host(client.compute(y).result(timeout=100))
    assert has_both_times(dgpu.explain(y, measured=True))


@pytest.mark.slow
def test_ucxx_must_be_on_every_worker(client, on_device):
    x = on_device(A, 60)
    (x @ x.T).compute()  # workers import ucxx in the background
    some = sorted(client.scheduler_info()["workers"])[1]

    def hide() -> None:
        sys.modules["ucxx"] = None  # type: ignore[assignment]

    client.run(hide, workers=[some])
    with pytest.raises(ValueError, match=rf"dgpu.comm .*, got 'ucx': the worker at {some} lacks"):
        dgpu.enable(client, comm="ucx", **SETTINGS)
