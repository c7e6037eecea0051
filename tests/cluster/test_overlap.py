"""Overlapping blocks on a cluster: one gang, few tasks, values, and with workers lost."""

from __future__ import annotations

import time
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import wait

from tests.cluster.losses import Losses
from tests.cluster.observe import (
    computed,
    counted,
    eventually,
    host,
    launched_runs,
    left_over,
    running,
    send_signal,
)

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

RNG = np.random.default_rng(11)
A = RNG.random((36, 40))
PADDING = {"reflect": "symmetric", "periodic": "wrap", "nearest": "edge", 0: "constant"}
"""NumPy's names for Dask's boundaries."""


@pytest.fixture
def x(on_device):
    return on_device(A, (9, 13))


def mean(block: Any) -> Any:
    """Return the mean of the four neighbours of each cell but those at the edges."""
    return 0.25 * (block[:-2, 1:-1] + block[2:, 1:-1] + block[1:-1, :-2] + block[1:-1, 2:])


def inner_mean(block: Any) -> Any:
    out = block.copy()
    out[1:-1, 1:-1] = mean(block)
    return out


def loop(x: da.Array, steps: int, boundary: Any) -> da.Array:
    """Smooth an array, in turns with a function that trims and one that leaves it to Dask."""
    for step in range(steps):
        trim = step % 2 == 0
        x = da.map_overlap(
            inner_mean if trim else mean,
            x,
            depth=1,
            boundary=boundary,
            trim=trim,
            dtype=float,
            meta=x._meta,
        )
    return x


def wanted(steps: int, boundary: Any) -> Any:
    value = A
    for _ in range(steps):
        value = mean(np.pad(value, 1, mode=PADDING[boundary]))
    return value


@pytest.mark.slow
@pytest.mark.parametrize("boundary", PADDING)
def test_a_loop_is_one_gang(client, x, boundary):
    result, gangs = computed(client, loop(x, 10, boundary))
    np.testing.assert_allclose(result, wanted(10, boundary), rtol=1e-14, strict=True)
    assert gangs == 1


@pytest.mark.slow
def test_many_steps_submit_few_tasks(client, x):
    before = launched_runs(client)
    y, tasks, blocks, ranks = counted(client, lambda x: loop(x, 200, 0), x)
    assert tasks <= blocks + 2 * ranks + 2
    assert launched_runs(client) - before == 1
    np.testing.assert_allclose(host(y.compute()), wanted(200, 0), rtol=1e-12, strict=True)


def test_bit_for_bit_what_plain_dask_makes(client, on_device):
    x, row = on_device(A, (9, 40)), on_device(A[0], 40)

    def shifted(block: Any, other: Any) -> Any:
        return block + other[: block.shape[1]] * block.sum()

    y = da.map_overlap(
        shifted, x, row, depth=[{0: 2}, {0: 0}], boundary=[3.5, "none"], dtype=float, meta=x._meta
    )
    y = da.map_overlap(np.cos, y, depth={0: (0, 3)}, boundary="none", dtype=float, meta=x._meta)
    result, gangs = computed(client, y)
    assert gangs == 1
    with dask.config.set(array_optimize=None):
        expected = host(client.compute(y).result(timeout=60))
    assert result.tobytes() == expected.tobytes()


def test_between_other_collectives(client, x):
    y = da.fft.ifft2(da.fft.fft2(loop(x, 2, "periodic"))).real
    z = loop(y, 2, "periodic").sum()
    result, gangs = computed(client, z)
    np.testing.assert_allclose(result, A.sum(), rtol=1e-12)
    assert gangs == 1


def test_errors_name_the_operation(client, x):
    def broken(block: Any) -> Any:
        raise ArithmeticError("no such number")

    y = da.map_overlap(broken, x, depth=1, boundary="none", dtype=float, meta=x._meta)
    with pytest.raises(ArithmeticError, match="no such number") as raised:
        client.compute(y).result(timeout=60)
    assert "_trim" in " ".join(raised.value.__notes__)
    result, _ = computed(client, loop(x, 4, 0))
    np.testing.assert_allclose(result, wanted(4, 0), rtol=1e-14)


class TestLosses(Losses):
    """A worker is lost, or the caller goes away."""

    @pytest.mark.slow
    def test_killed_amid_a_loop(self, client, cluster, x):
        computed(client, loop(x, 2, 0))

        def dawdle(block: Any) -> Any:
            time.sleep(0.02)
            return mean(block)

        y = x
        for _ in range(20):
            y = y.map_overlap(dawdle, depth=1, boundary=0, trim=False, dtype=float, meta=x._meta)
        future = client.compute(y)
        eventually(lambda: running(client))
        time.sleep(0.5)
        send_signal(client, sorted(client.scheduler_info(n_workers=-1)["workers"])[-1])
        np.testing.assert_allclose(host(future.result(timeout=90)), wanted(20, 0), rtol=1e-12)
        eventually(lambda: left_over(client) == 0)

    @pytest.mark.slow
    def test_killed_after_it(self, client, cluster, x):
        y = loop(x, 4, "reflect").persist()
        wait(y)
        send_signal(client, sorted(client.scheduler_info(n_workers=-1)["workers"])[0])
        result, _ = computed(client, y + 0)
        np.testing.assert_allclose(result, wanted(4, "reflect"), rtol=1e-14)

    @pytest.mark.slow
    @pytest.mark.timeout(600)
    def test_kills_at_random_moments(self, client, cluster, device, x):
        for result in self.killed_at_random(
            client,
            cluster,
            device,
            lambda: client.compute(loop(x, 30, "periodic") * 1),
            seed=14,
            seconds=0.8,
        ):
            np.testing.assert_allclose(result, wanted(30, "periodic"), rtol=1e-12)
