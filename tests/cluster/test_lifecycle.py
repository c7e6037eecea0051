"""Communicators in a cluster's life: how long they are waited for, kept and shared."""

from __future__ import annotations

import time
from itertools import combinations
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client

import dask_dgpu as dgpu
from tests.cluster.conftest import SETTINGS
from tests.cluster.observe import eventually, host, left_over, reports, transports

pytestmark = pytest.mark.cluster

RNG = np.random.default_rng(14)
A = RNG.integers(-9, 9, (40, 40))


def addresses(client: Client) -> list[str]:
    return sorted(client.scheduler_info(n_workers=-1)["workers"])


def product(client: Client, x: da.Array, workers: list[str] | None = None) -> Any:
    return client.compute(x @ x, workers=workers)


@pytest.mark.slow
def test_an_uneven_function_is_waited_for(client: Client, on_device: Any) -> None:
    """Ranks wait for one whose function takes longer than the time limit; so do later gangs."""

    def uneven(block: Any, block_info: Any = None) -> Any:
        if block_info[0]["chunk-location"] == (0, 0):
            time.sleep(7)
        return block

    x = on_device(A, 20)
    product(client, x + 9).result(timeout=60)  # imports are over
    with dgpu.enable(client, **(SETTINGS | {"gang_timeout": "4s", "gang_grace": "0.1s"})):
        workers = addresses(client)[:3]
        slow = product(client, x.map_blocks(uneven, meta=x._meta), workers)
        behind = product(client, x + 1, workers)
        elsewhere = product(client, x + 2, workers[:2])
        np.testing.assert_array_equal(host(slow.result(timeout=60)), A @ A)
        np.testing.assert_array_equal(host(behind.result(timeout=60)), (A + 1) @ (A + 1))
        np.testing.assert_array_equal(host(elsewhere.result(timeout=60)), (A + 2) @ (A + 2))
    eventually(lambda: left_over(client) == 0)


@pytest.mark.slow
def test_other_settings_make_another_communicator(client: Client, on_device: Any) -> None:
    x = on_device(A, 20)
    np.testing.assert_array_equal(host(product(client, x).result(timeout=60)), A @ A)
    before = reports(client)
    with dgpu.enable(client, **(SETTINGS | {"gang_timeout": "21s"})):
        np.testing.assert_array_equal(host(product(client, x + 1).result()), (A + 1) @ (A + 1))
    after = reports(client)
    for worker, report in after.items():
        assert report["connected"] > before[worker]["connected"]


@pytest.mark.slow
def test_another_transport_beside_the_first(client: Client, on_device: Any) -> None:
    x = on_device(A, 20)
    np.testing.assert_array_equal(host(product(client, x).result(timeout=60)), A @ A)
    assert "UcxComm" not in transports(client)
    with dgpu.enable(client, comm="ucx", **SETTINGS):
        np.testing.assert_array_equal(host(product(client, x + 2).result()), (A + 2) @ (A + 2))
    assert "UcxComm" in transports(client)
    again = reports(client)
    np.testing.assert_array_equal(host(product(client, x + 3).result()), (A + 3) @ (A + 3))
    for worker, report in reports(client).items():  # what was there before is used again
        assert report["connected"] == again[worker]["connected"]


@pytest.mark.slow
def test_communicators_of_subsets_are_closed(client: Client, on_device: Any) -> None:
    x = on_device(A, 20)
    everyone = addresses(client)
    for number, workers in enumerate([*combinations(everyone, 2), *combinations(everyone, 3)]):
        found = product(client, x + number, list(workers)).result(timeout=60)
        np.testing.assert_array_equal(host(found), (A + number) @ (A + number))

    def kept() -> bool:
        found = reports(client).values()
        return all(r["stores"] == r["epochs"] and len(r["epochs"]) <= 4 for r in found)

    eventually(kept)
