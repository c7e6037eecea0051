"""Transforms on a cluster: values, tasks, bytes, and with workers lost."""

from __future__ import annotations

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import wait

import dask_dgpu as dgpu
from tests.cluster.losses import Losses
from tests.cluster.observe import (
    check,
    counted,
    host,
    launched_runs,
    send_signal,
)

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

RNG = np.random.default_rng(9)
A = RNG.random((60, 44)) + 1j * RNG.random((60, 44))
CUBE = RNG.random((12, 10, 14))


@pytest.fixture
def x(on_device):
    return on_device(A, (7, 44))


def test_slabs(client, x):
    assert check(client, da.fft.fft2(x), np.fft.fft2(A)) == 1
    assert check(client, np.fft.fft(x, axis=0), np.fft.fft(A, axis=0)) == 1
    assert check(client, da.fft.ifft2(da.fft.fft2(x)), A) == 1


def test_any_chunks_and_layouts(client, on_device):
    x = on_device(A, (13, 9))
    for layout in ("any", "input"):
        with dask.config.set({"dgpu.fft.output-layout": layout}):
            y = da.fft.fft2(x)
        assert check(client, y, np.fft.fft2(A)) == 1
        assert (y.chunks == x.chunks) == (layout == "input")


def test_cubes(client, on_device):
    x = on_device(CUBE, (4, 5, 14))
    assert check(client, da.fft.fftn(x), np.fft.fftn(CUBE)) == 1
    y = da.fft.rfftn(x, s=(8, 12, 20), axes=(0, 1, 2), norm="ortho")
    assert check(client, y, np.fft.rfftn(CUBE, s=(8, 12, 20), axes=(0, 1, 2), norm="ortho")) == 1
    back = da.fft.irfftn(da.fft.rfftn(x), s=CUBE.shape, axes=(0, 1, 2))
    assert check(client, back, CUBE) == 1


def test_before_a_product(client, x):
    z = da.fft.fft2(x) @ da.fft.fft2(x).T
    assert check(client, z, np.fft.fft2(A) @ np.fft.fft2(A).T) == 1


def test_single_precision_stays(client, on_device):
    a = CUBE[0].astype("float32")
    result = client.compute(da.fft.rfft2(on_device(a, (3, 14)))).result(timeout=60)
    assert result.dtype == np.complex64
    np.testing.assert_allclose(host(result), np.fft.rfft2(a), rtol=1e-4, atol=1e-4)


def test_tasks_submitted(client, x):
    y, tasks, blocks, ranks = counted(client, da.fft.fft2, x)
    assert blocks < tasks <= blocks + 2 * ranks + 2
    np.testing.assert_allclose(host(y.compute()), np.fft.fft2(A))


def test_not_enabled_is_plain_dask(client, x):
    y = da.fft.fft2(x)
    before = launched_runs(client)
    with dask.config.set(array_optimize=None):
        result = client.compute(y).result(timeout=60)
    np.testing.assert_allclose(host(result), np.fft.fft2(A), rtol=1e-10, atol=1e-10)
    assert launched_runs(client) == before


@pytest.mark.multigpu
@pytest.mark.parametrize("device", ["cuda"], indirect=True)
def test_small_transforms_over_tcp_are_worth_a_gang(client):
    """Dask moves CuPy blocks over TCP through the host."""
    slabs = {"chunks": (2048, 8192), "dtype": "complex64"}
    with (
        dask.config.set({"array.backend": "cupy"}),
        dgpu.enable(client, when="cheaper", on_error="raise") as enabled,
    ):
        assert enabled.optimizer.facts.protocol == "tcp"
        before = launched_runs(client)
        y = da.fft.fft2(da.ones((8192, 8192), **slabs)).persist()
        wait(y)
        assert launched_runs(client) == before + 1
        assert abs(complex(y[0, 0].compute()) - 8192**2) <= 1


def test_explained(client, x):
    assert len(dgpu.explain(da.fft.fft2(x)).rewritten) == 1


@pytest.mark.slow
class TestLosses(Losses):
    """A worker is lost, or the caller goes away."""

    def test_killed_in_the_collective(self, client, cluster, x):
        check(client, da.fft.fft2(x), np.fft.fft2(A))
        self.slow(client, 1.0)
        future = client.compute(da.fft.fft2(x) * 1)
        result = self.result_after_loss(client, future)
        np.testing.assert_allclose(result, np.fft.fft2(A), rtol=1e-10)

    @pytest.mark.slow
    def test_killed_after_it(self, client, cluster, x):
        y = da.fft.fft2(x).persist()
        wait(y)
        send_signal(client, sorted(client.scheduler_info(n_workers=-1)["workers"])[0])
        check(client, y + 0, np.fft.fft2(A))

    @pytest.mark.slow
    @pytest.mark.timeout(600)
    def test_kills_at_random_moments(self, client, cluster, device, x):
        """Gangs that wait for gangs: there and back."""
        for result in self.killed_at_random(
            client,
            cluster,
            device,
            lambda: client.compute(da.fft.ifft2(da.fft.fft2(x)) * 1),
            seed=12,
            seconds=1.0,
        ):
            np.testing.assert_allclose(result, A, rtol=1e-10)


@pytest.mark.parametrize("n", [240_000, pytest.param(240_007, marks=pytest.mark.slow)])
def test_an_axis_too_long_for_a_block(client, on_device, n):
    part = RNG.random(n) + 1j * RNG.random(n)
    a = np.concatenate([part * scale for scale in range(10)])
    x = da.concatenate([on_device(part, -1) * scale for scale in range(10)]).persist()
    y = da.fft.fft(x)
    assert y.numblocks == x.numblocks
    assert check(client, y, np.fft.fft(a)) == 1
    back = da.fft.irfft(da.fft.rfft(x.real), n=10 * n)
    assert back.numblocks[0] > 5
    assert check(client, back, a.real) == 1
