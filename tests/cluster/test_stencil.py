"""Stencils and Jacobi's iteration on a cluster: values, tasks, bytes, and with workers lost."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, wait

import dask_dgpu as dgpu
from tests.array.stencil.test_stencil import reference
from tests.cluster.losses import Losses
from tests.cluster.observe import (
    check,
    counted,
    eventually,
    host,
    launched_runs,
    left_over,
    running,
    send_signal,
)
from tests.support.reference.elimination import direct

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

A = np.random.default_rng(9).random((60, 44))
HEAT = np.array([[0.0, 0.2, 0.0], [0.2, 0.2, 0.2], [0.0, 0.2, 0.0]])


@pytest.fixture
def x(on_device: Any) -> da.Array:
    return on_device(A, (17, 22))


@pytest.mark.parametrize("boundary", ["zero", "periodic", "reflect", "mirror", "nearest", 1.5])
@pytest.mark.parametrize("iterations", [1, 20])
def test_stencil(client: Client, x: da.Array, boundary: Any, iterations: int) -> None:
    y = dgpu.stencil(x, HEAT, boundary=boundary, iterations=iterations)
    assert check(client, y, reference(A, HEAT, boundary, iterations)) == 1


def test_within_a_region(client: Client, x: da.Array) -> None:
    y = dgpu.stencil(dgpu.stencil(x + 1, HEAT) * 2, HEAT, boundary="nearest").sum(axis=0)
    first = reference(A + 1, HEAT, "zero", 1)
    assert check(client, y, reference(2 * first, HEAT, "nearest", 1).sum(axis=0)) == 1


def test_tasks_submitted(client: Client, x: da.Array) -> None:
    y, tasks, blocks, _ = counted(client, lambda x: dgpu.stencil(x, HEAT, iterations=100), x)
    assert tasks <= blocks + 1
    np.testing.assert_allclose(host(y.compute()), reference(A, HEAT, "zero", 100), atol=1e-10)


@pytest.mark.slow
def test_jacobi(client: Client, x: da.Array) -> None:
    before = launched_runs(client)
    u, info = dgpu.jacobi(x * 0, x, dx=0.1, max_iterations=20_000, tol=1e-8)
    assert launched_runs(client) == before + 1
    assert (info.converged, info.reason) == (True, "converged")
    assert info.residuals[-1] <= 1e-8
    wanted = direct(A, 0.1, 0.0)
    np.testing.assert_allclose(host(u.compute()), wanted, atol=1e-5 * np.abs(wanted).max())
    assert type(u._meta) is type(x._meta)
    del u
    eventually(lambda: left_over(client) == 0)


@pytest.mark.slow
def test_jacobis_records(client: Client, x: da.Array) -> None:
    """They stay when a result is used again, and belong to their own gangs."""

    def solve(iterations: int) -> Any:
        return dgpu.jacobi(x * 0, x, max_iterations=iterations, tol=1e-300)

    u, first = solve(10)
    before = launched_runs(client)
    same, again = solve(10)
    assert (launched_runs(client), again, same.name) == (before, first, u.name)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(solve, [20, 30, 40]))
    assert [info.iterations for _, info in found] == [20, 30, 40]


@pytest.mark.slow
def test_jacobi_not_enabled_is_plain_dask(client: Client, x: da.Array) -> None:
    before = launched_runs(client)
    with dask.config.set(array_optimize=None):
        u, info = dgpu.jacobi(x * 0, x, max_iterations=30)
    assert launched_runs(client) == before
    v, same = dgpu.jacobi(x * 0, x, max_iterations=30)
    np.testing.assert_allclose(host(u.compute()), host(v.compute()), atol=1e-12)
    assert info.residuals[-1] == pytest.approx(same.residuals[-1])


class TestLosses(Losses):
    """A worker is lost, or the caller goes away."""

    wanted = reference(A, HEAT, "periodic", 50)

    def swept(self, x: da.Array) -> da.Array:
        return dgpu.stencil(x, HEAT, boundary="periodic", iterations=50)

    @pytest.mark.slow
    def test_killed_in_the_collective(self, client: Client, cluster: Any, x: da.Array) -> None:
        check(client, self.swept(x), self.wanted)
        self.slow(client, 1.0)
        future = client.compute(self.swept(x) * 1)
        np.testing.assert_allclose(self.result_after_loss(client, future), self.wanted, atol=1e-10)

    @pytest.mark.slow
    def test_killed_after_it(self, client: Client, cluster: Any, x: da.Array) -> None:
        y = self.swept(x).persist()
        wait(y)
        send_signal(client, sorted(client.scheduler_info(n_workers=-1)["workers"])[0])
        check(client, y + 0, self.wanted)

    @pytest.mark.slow
    def test_killed_in_an_iteration(self, client: Client, cluster: Any, x: da.Array) -> None:
        known = dgpu.jacobi(x * 0, x, max_iterations=3000, tol=1e-30)[1]
        eventually(lambda: left_over(client) == 0)
        self.slow(client, 1.0)
        found: list[Any] = []
        caller = threading.Thread(
            target=lambda: found.append(dgpu.jacobi(x * 0, x, max_iterations=3000, tol=1e-30)),
            daemon=True,
        )
        caller.start()
        eventually(lambda: running(client))
        send_signal(client, sorted(client.scheduler_info(n_workers=-1)["workers"])[-1])
        caller.join(100)
        ((u, info),) = found
        assert (info.iterations, info.converged) == (3000, False)
        assert info.residuals[-1] == pytest.approx(known.residuals[-1])
        assert u.compute().shape == A.shape

    @pytest.mark.slow
    @pytest.mark.timeout(600)
    def test_kills_at_random_moments(
        self, client: Client, cluster: Any, device: str, x: da.Array
    ) -> None:
        for result in self.killed_at_random(
            client,
            cluster,
            device,
            lambda: client.compute(self.swept(x) * 1),
            seed=12,
            seconds=1.0,
        ):
            np.testing.assert_allclose(result, self.wanted, atol=1e-10)
