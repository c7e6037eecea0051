"""Collectives that do not fit the workers, in several gangs, one after another."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, wait
from scipy import ndimage

import dask_dgpu as dgpu
from tests.cluster.conftest import SETTINGS, start_cluster
from tests.cluster.losses import slow_programs
from tests.cluster.observe import (
    eventually,
    host,
    launched_runs,
    left_over,
    nothing_left,
    send_signal,
    settled,
)

pytestmark = pytest.mark.cluster

N = 203
A = np.random.default_rng(3).integers(-9, 10, (N, N)).astype(float)
TALL = np.random.default_rng(4).integers(-9, 10, (2003, 50)).astype(float)


def limit_of(client: Client, z: da.Array) -> int:
    """Return the most bytes with which a collective runs in parts, about."""
    workers = len(client.scheduler_info(n_workers=-1)["workers"])
    for limit in range(1_600_000 // workers, 400_000 // workers, -10_000):
        with limited(client, limit, regions=False):
            if [each["parts"] > 1 for each in dgpu.explain(z).to_dict()["regions"]] == [True]:
                return limit
    raise AssertionError("the product never runs in parts")


def limited(client: Client, limit: int, **settings: Any) -> Any:
    return dgpu.enable(client, **SETTINGS, memory_limit=limit, memory_safety_margin=0, **settings)


def parts_of(z: da.Array, limit: int) -> int:
    ((_, prediction),) = dgpu.explain(z).regions
    assert prediction.peak_bytes <= limit
    assert prediction.parts > 1
    return prediction.parts


def operands(make: Callable[..., da.Array], *, there: bool) -> list[da.Array]:
    """Return ``A`` and its transpose, computed already if ``there``."""
    arrays = [make(A, (29, 50)), make(A.T, (50, 41))]
    if there:
        arrays = [x.persist() for x in arrays]
        wait(arrays)
    return arrays


@pytest.mark.slow
@pytest.mark.parametrize("there", [False, True], ids=["lazy", "persisted"])
def test_products(client, on_device, there: bool) -> None:
    x, y = operands(on_device, there=there)
    limit = limit_of(client, x @ y)
    with limited(client, limit, regions=False):
        parts, before = parts_of(x @ y, limit), launched_runs(client)
        np.testing.assert_array_equal(host((x @ y).compute()), A @ A.T)
        assert launched_runs(client) - before == parts
        first, second = dask.compute((x @ y)[:40, 50:], (x @ y).sum(axis=0))
        np.testing.assert_array_equal(host(first), (A @ A.T)[:40, 50:])
        np.testing.assert_array_equal(host(second), (A @ A.T).sum(axis=0))
        nothing_left(client, *([x, y] if there else []))


def test_a_product_with_one_block_is_summed_in_terms(client, on_device) -> None:
    x = on_device(TALL, (100, 50)).persist()
    wait(x)
    limit = limit_of(client, x.T @ x)
    with limited(client, limit):
        parts, before = parts_of(x.T @ x, limit), launched_runs(client)
        np.testing.assert_array_equal(host((x.T @ x).compute()), TALL.T @ TALL)
        assert launched_runs(client) - before == parts
        other = on_device(TALL + 1, (100, 50)).persist()
        wait(other)
        again = host((other.T @ other).compute())  # its structure is known
        np.testing.assert_array_equal(again, (TALL + 1).T @ (TALL + 1))
        nothing_left(client, x, other)


@pytest.mark.slow
def test_results_are_inputs_again(client, on_device) -> None:
    """Parts of a second product read blocks that all parts of the first have computed."""
    x = on_device(A, (29, 29))
    with limited(client, 180_000):
        z = (x @ x) @ x
        assert [found.parts > 1 for _, found in dgpu.explain(z).regions] == [True, True]
        np.testing.assert_array_equal(host(z.compute()), A @ A @ A)


@pytest.mark.slow
def test_transforms_and_stencils_go_in_passes(client, on_device) -> None:
    x = on_device(A, (29, 50))
    transform, sweeps = dgpu.fft.fft2(x), dgpu.stencil(x, boundary="periodic", iterations=3)
    swept = A
    for _ in range(3):
        swept = ndimage.correlate(swept, dgpu.LAPLACIAN_5PT, mode="wrap")
    for z, limit, passes, wanted in (
        (transform, 400_000, 2, np.fft.fft2(A)),
        (sweeps, 200_000, 3, swept),
    ):
        with limited(client, limit):
            predictions = [prediction for _, prediction in dgpu.explain(z).regions]
            assert [each.parts > 1 for each in predictions] == [True] * passes
            before = launched_runs(client)
            np.testing.assert_allclose(host(z.compute()), wanted, rtol=0, atol=1e-10)
            assert launched_runs(client) - before == sum(each.parts for each in predictions)
            nothing_left(client)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lazy", "persisted", "terms"])
def test_a_worker_is_lost_between_parts(kind: str) -> None:
    with start_cluster("cpu") as cluster, cluster.get_client() as client:
        x, y = operands(da.from_array, there=kind == "persisted")
        z, wanted = x @ y, A @ A.T
        if kind == "terms":
            x = da.from_array(TALL, chunks=(50, 50))
            z, wanted = x.T @ x, TALL.T @ TALL
        limit = limit_of(client, z)
        with limited(client, limit, regions=False):
            parts, before = parts_of(z, limit), launched_runs(client)
            slow_programs(client, 0.5)
            future: Any = client.compute(z)
            eventually(lambda: launched_runs(client) > before + 1)
            time.sleep(0.2)
            send_signal(client, sorted(cluster.scheduler.workers)[0])
            np.testing.assert_array_equal(future.result(timeout=90), wanted)
            assert launched_runs(client) - before > parts
            del future
            eventually(lambda: settled(cluster) and left_over(client) == 0, 60)
