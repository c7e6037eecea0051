"""Layers whose tasks depend on each other on a cluster: one gang, values, and lost workers."""

from __future__ import annotations

import time
from typing import Any

import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu
from tests.cluster.losses import Losses
from tests.cluster.test_meeting import compute

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

RNG = np.random.default_rng(12)
A = RNG.random((44, 12))
S = A @ A.T + 44 * np.eye(44)
IN_ROWS, IN_BLOCKS = (11, 12), (11, 5)


def gram(r: da.Array) -> da.Array:
    return r.T @ r


FORMS: dict[str, Any] = {
    "running sum": (A, IN_BLOCKS, lambda x: da.cumsum(x, axis=0), A.cumsum(axis=0)),
    "along rows": (A, IN_BLOCKS, lambda x: da.cumsum(x, axis=1), A.cumsum(axis=1)),
    "by Blelloch": (A, (5, 12), lambda x: da.cumsum(x, 0, method="blelloch"), A.cumsum(axis=0)),
    "triangular factor": (A, IN_ROWS, lambda x: gram(da.linalg.qr(x)[1]), A.T @ A),
    "orthogonal factor": (A, IN_ROWS, lambda x: gram(da.linalg.qr(x)[0]), np.eye(12)),
    "singular values": (A, IN_ROWS, lambda x: da.linalg.svd(x)[1], np.linalg.svd(A)[1]),
    "Cholesky": (S, 11, lambda x: da.linalg.cholesky(x, lower=True), np.linalg.cholesky(S)),
    "taken": (A, IN_BLOCKS, lambda x: x[[40, 3, 17, 3, 25]], A[[40, 3, 17, 3, 25]]),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_they_are_one_gang(client, in_memory, form):
    values, chunks, function, wanted = FORMS[form]
    x = in_memory(values, chunks)
    z = function(x)
    predicted = dgpu.explain(z)
    result, gangs = compute(client, z)
    np.testing.assert_allclose(result, wanted, rtol=1e-10, atol=1e-11)
    # Dask declares blocks of NumPy for Blelloch's running sum, also on GPUs: no gang then
    assert gangs == len(predicted.regions) == (type(z._meta) is type(x._meta))


def test_percentiles_of_blocks_on_the_host(client):
    values = RNG.random(44)
    z = da.percentile(da.from_array(values, chunks=11), [100])
    np.testing.assert_array_equal(compute(client, z)[0], [values.max()])


def test_blocks_that_do_not_exist_yet(client, on_device):
    z = da.cumsum(on_device(A, IN_BLOCKS) + 1, axis=0)
    result, gangs = compute(client, z)
    np.testing.assert_allclose(result, (A + 1).cumsum(axis=0), rtol=1e-12)
    assert gangs == 1


def slowly(x: Any, y: Any) -> Any:
    """Add totals, so slowly that a worker is lost between two steps."""
    time.sleep(0.05)
    return x + y


def running(x: da.Array) -> da.Array:
    return da.reductions.cumreduction(np.cumsum, slowly, 0, x, 0, x.dtype)


class TestLosses(Losses):
    """A worker is lost between the steps of a running sum."""

    @pytest.mark.slow
    @pytest.mark.timeout(600)
    def test_kills_at_random_moments(self, client, cluster, device, on_device):
        x = on_device(A, (4, 12))
        for result in self.killed_at_random(
            client,
            cluster,
            device,
            lambda: client.compute(running(x) * 1),
            seed=14,
            seconds=1.2,
        ):
            np.testing.assert_allclose(result, A.cumsum(axis=0), rtol=1e-12)

    @pytest.mark.slow
    def test_a_worker_is_lost_midway(self, client, on_device):
        future = client.compute(running(on_device(A, (4, 12))))
        result = self.result_after_loss(client, future)
        np.testing.assert_allclose(result, A.cumsum(axis=0), rtol=1e-12)
