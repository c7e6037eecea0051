"""Sums on a cluster: the same bits whatever the workers do, few tasks, and with workers lost."""

from __future__ import annotations

import random
import time
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, Future, wait
from ml_dtypes import finfo

import dask_dgpu as dgpu
from tests.cluster.conftest import SETTINGS
from tests.cluster.losses import Losses, killed_at_random
from tests.cluster.observe import (
    counted,
    eventually,
    host,
    launched_runs,
    left_over,
    running,
    send_signal,
)
from tests.support.exact import exact, family, to_nearest, within_bound

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

VALUES = family("condition 1e16", 60 * 44, "float64")
A = VALUES.reshape(60, 44)
WANTED = to_nearest(exact(VALUES), "float64").tobytes()
METHODS = ["compensated", "reproducible"]


@pytest.fixture
def x(on_device):
    return on_device(A, (7, 13))


def summed(client: Client, y: da.Array) -> Any:
    result = client.compute(y).result(timeout=100)
    assert (result.dtype, result.shape) == (y.dtype, y.shape)
    return host(result)


def test_values_and_bits(client, x, on_device):
    assert within_bound(summed(client, dgpu.sum(x)), VALUES, np.finfo(float).eps)
    for array in (x, on_device(A, (60, 1)), on_device(A[::-1, ::-1].copy(), (11, 44)), x.T):
        assert summed(client, dgpu.sum(array, method="reproducible")).tobytes() == WANTED


@pytest.mark.slow
def test_axes(client, x):
    for method in METHODS:
        for axis in (0, 1):
            sums = summed(client, dgpu.sum(x, axis, keepdims=True, method=method))
            wanted = [to_nearest(exact(line), "float64") for line in np.moveaxis(A, axis, 1)]
            if method == "reproducible":
                np.testing.assert_array_equal(sums.ravel(), wanted)
            np.testing.assert_allclose(sums.ravel(), wanted, rtol=1e-14, atol=1e-30)


def test_tasks_submitted(client, x):
    for method in METHODS:
        found = counted(client, partial(dgpu.sum, method=method), x)
        assert x.npartitions < found.tasks <= x.npartitions + 2 * found.ranks + 2


def test_after_a_collective(client, x):
    spectrum = abs(da.fft.fft2(x)) ** 2
    wanted = (abs(np.fft.fft2(A)) ** 2).sum()
    for method in METHODS:
        found = summed(client, dgpu.sum(spectrum, method=method))
        np.testing.assert_allclose(found, wanted, rtol=1e-12)
    eventually(lambda: left_over(client) == 0)


def test_setting(client, x):
    with dgpu.enable(client, **SETTINGS, sum_method="reproducible"):
        assert summed(client, x.sum()).tobytes() == WANTED
        assert summed(client, da.sum(x.rechunk((60, 2)))).tobytes() == WANTED
    assert x.sum().name.startswith("sum-")


@pytest.mark.slow
def test_bfloat16(client, on_device):
    """Bits for any blocks, of a result that is single: CuPy blocks need not travel for it."""
    values = family("condition 1e4", 60 * 44, "bfloat16").reshape(60, 44)
    wanted = to_nearest(exact(values), "bfloat16")
    for chunks in ((7, 13), (60, 1)):
        x = on_device(values, chunks)
        for method in METHODS:
            found = summed(client, dgpu.sum(x, method=method).astype("float32"))
            assert within_bound(found, values, float(finfo("bfloat16").eps))
            assert method == "compensated" or found == wanted
    spectrum = (abs(da.fft.fft2(on_device(A, (7, 13)))) ** 2).astype("bfloat16")
    found = summed(client, dgpu.sum(spectrum, 0, method="reproducible").astype("float32"))
    made = (abs(np.fft.fft2(A)) ** 2).astype("bfloat16").astype(float).sum(0)
    np.testing.assert_allclose(found, made, rtol=2 * float(finfo("bfloat16").eps))


def test_bfloat16_blocks_of_numpy_travel(client, device):
    """From the client, between workers, to ranks and back, by pickle or as memory."""
    values = family("uniform", 61 * 44, "bfloat16").reshape(61, 44)
    x = client.persist(da.from_array(values, chunks=(9, 44)))
    y = client.persist(da.rechunk(x, (61, 5)) * np.dtype("bfloat16").type(2))
    for array in (x, y, y[::-1].T):
        total = dgpu.sum(array, 0, method="reproducible")
        found = client.compute(total).result(timeout=100)
        plain = client.compute(array).result(timeout=100)
        assert (type(found), found.dtype, plain.dtype) == (np.ndarray, values.dtype, values.dtype)
        wanted = [to_nearest(exact(line), "bfloat16") for line in plain.T]
        np.testing.assert_array_equal(found, wanted)
    one = client.compute(dgpu.sum(x, method="reproducible")).result(timeout=100)
    assert type(one) is values.dtype.type
    assert one == to_nearest(exact(values), "bfloat16")
    wide = np.tile(values[:9], 5000)
    z = client.persist(da.from_array(wide, chunks=(2, 110_000)))
    wait(z)
    for method in METHODS:
        before = launched_runs(client)
        found = client.compute(dgpu.sum(z, 0, method=method)).result(timeout=100)
        # workers with GPUs leave sums of host blocks to Dask's tasks
        assert launched_runs(client) - before == (device == "cpu")
        wanted = [to_nearest(exact(line), "bfloat16") for line in values[:9].T]
        np.testing.assert_array_equal(found, np.tile(wanted, 5000))


def wide(on_device: Any) -> tuple[da.Array, Any]:
    """Return an array that is there, of many sums along its first axis, and these sums."""
    a = np.tile(family("condition 1e8", 9 * 1000, "float32").reshape(9, 1000), 200)
    x = on_device(a, (2, 100_000)).persist()
    wait(x)
    wanted = np.array([to_nearest(exact(a[:, k]), "float32") for k in range(1000)])
    return x, np.tile(wanted, 200)


def test_wide_sums_are_a_gang(client, on_device):
    x, wanted = wide(on_device)
    for method in METHODS:
        before = launched_runs(client)
        y = dgpu.sum(x, 0, method=method)
        assert len(dgpu.explain(y).regions) == 1
        np.testing.assert_array_equal(summed(client, y), wanted)
        assert launched_runs(client) - before == 1
    mean = summed(client, dgpu.mean(x, 0, keepdims=True))
    np.testing.assert_allclose(mean[0], wanted / 9, rtol=1e-6)
    eventually(lambda: left_over(client) == 0)


@pytest.mark.slow
class TestLosses(Losses):
    """Workers are lost, and the bits stay the same."""

    @pytest.mark.slow
    @pytest.mark.parametrize("method", METHODS)
    def test_killed_while_blocks_are_summed(self, client, cluster, x, method):
        slow = x.map_blocks(late, 0.3, dtype=x.dtype, meta=x._meta)
        future = client.compute(dgpu.sum(slow, method=method))
        time.sleep(0.5)
        send_signal(client, sorted(client.scheduler_info(n_workers=-1)["workers"])[-1])
        found = host(future.result(timeout=100))
        assert within_bound(found, VALUES, np.finfo(float).eps)
        if method == "reproducible":
            assert found.tobytes() == WANTED

    def test_killed_in_the_collective(self, client, cluster, on_device):
        x, wanted = wide(on_device)
        y = dgpu.sum(x, 0, method="reproducible")
        np.testing.assert_array_equal(summed(client, y), wanted)

        self.slow(client, 1.0)
        future = client.compute(y)
        eventually(lambda: running(client))
        send_signal(client, sorted(client.scheduler_info(n_workers=-1)["workers"])[-1])
        np.testing.assert_array_equal(host(future.result(timeout=100)), wanted)
        eventually(lambda: left_over(client) == 0)

    @pytest.mark.slow
    @pytest.mark.timeout(600)
    def test_kills_at_random_moments(self, client, cluster, device, x):
        """In a gang, and before and after it."""
        plain = abs(da.fft.fft2(x)) ** 2
        wanted = summed(client, dgpu.sum(plain, method="reproducible"))
        chance = random.Random(5)

        def submit() -> Future:
            late_blocks = x.map_blocks(late, chance.uniform(0, 0.05), dtype=x.dtype, meta=x._meta)
            spectrum = abs(da.fft.fft2(late_blocks)) ** 2
            return client.compute(dgpu.sum(spectrum, method="reproducible"))

        kills = 6 if device == "cpu" else 3
        for found in killed_at_random(client, cluster, submit, kills=kills, seed=5, seconds=1.0):
            np.testing.assert_allclose(found, wanted, rtol=1e-12)
        eventually(lambda: not running(client))


def late(block: Any, seconds: float) -> Any:
    time.sleep(seconds)
    return block
