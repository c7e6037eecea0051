"""What happens to a product when something else happens."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import CancelledError, Client, wait

import dask_dgpu as dgpu
from dask_dgpu.errors import GangError
from tests.cluster.conftest import SETTINGS, start_cluster
from tests.cluster.faults import restore_blocks, slow_blocks, spoil_blocks
from tests.cluster.losses import killed_at_random
from tests.cluster.observe import (
    PLUGIN,
    eventually,
    host,
    left_over,
    reports,
    running,
    send_signal,
)

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

RNG = np.random.default_rng(6)
A = RNG.integers(-9, 9, (307, 211))
B = RNG.integers(-9, 9, (211, 190))


@pytest.fixture
def cluster(device: str) -> Iterator[Any]:
    """A cluster that the test may damage."""
    with start_cluster(device) as cluster:
        yield cluster


@pytest.fixture
def x(on_device):
    return on_device(A, 60)


@pytest.fixture
def y(on_device):
    return on_device(B, (60, 50))


def error_once_stopped(client: Client, worker: str, future: Any, seconds: float) -> GangError:
    """Stop a rank of a running gang; return the error, which must come in so many seconds."""
    eventually(lambda: running(client))
    send_signal(client, worker, signal.SIGSTOP)
    begin = time.monotonic()
    with pytest.raises(GangError) as raised:
        future.result(timeout=60)
    assert time.monotonic() - begin < seconds
    return raised.value


def revive(cluster: Any, worker: str) -> None:
    """End a process that is stopped; its nanny makes another."""
    for nanny in cluster.workers.values():
        if nanny.worker_address == worker:
            nanny.process.process._process.kill()


def check(client: Client, product: da.Array) -> None:
    result = client.compute(product).result(timeout=60)
    np.testing.assert_array_equal(host(result), A @ B)


def any_worker(client: Client) -> str:
    return random.Random(3).choice(sorted(client.scheduler_info()["workers"]))


@pytest.mark.slow
def test_killed_before_the_barrier(client, cluster, x, y):
    def slowly(block: Any) -> Any:
        time.sleep(0.2)
        return block

    future = client.compute(x.map_blocks(slowly, dtype=x.dtype) @ y)
    eventually(lambda: sum(r["staged"] for r in reports(client).values()) > 3)
    send_signal(client, any_worker(client))
    np.testing.assert_array_equal(host(future.result(timeout=60)), A @ B)
    check(client, x @ y + 0)


def test_killed_in_the_collective(client, cluster, x, y):
    check(client, x @ y)
    slow_blocks(client, 0.3)
    future = client.compute((x @ y) * 1)
    eventually(lambda: running(client))
    send_signal(client, any_worker(client))
    np.testing.assert_array_equal(host(future.result(timeout=60)), A @ B)
    check(client, x @ y)
    eventually(lambda: left_over(client) == 0)


@pytest.mark.slow
def test_killed_in_a_batched_product(client, cluster, on_device):
    left, right = RNG.integers(-9, 9, (8, 60, 40)), RNG.integers(-9, 9, (8, 40, 50))
    z = on_device(left, (1, 30, 20)) @ on_device(right, (1, 20, 25))
    slow_blocks(client, 0.1)
    future = client.compute(z * 1)
    eventually(lambda: running(client))
    send_signal(client, any_worker(client))
    np.testing.assert_array_equal(host(future.result(timeout=60)), left @ right)
    eventually(lambda: left_over(client) == 0)


@pytest.mark.slow
def test_killed_after_it(client, cluster, x, y):
    z = (x @ y).persist()
    wait(z)
    send_signal(client, any_worker(client))
    check(client, z + 0)
    check(client, x @ y)


@pytest.mark.slow
def test_killed_for_good(client, cluster, x, y):
    """The others do the work when a worker does not come back."""
    check(client, x @ y)
    worker = any_worker(client)
    for nanny in cluster.workers.values():
        if nanny.worker_address == worker:
            nanny.close_gracefully()  # once its worker is gone
    slow_blocks(client, 0.3)
    future = client.compute((x @ y) * 1)
    eventually(lambda: running(client))
    send_signal(client, worker)
    np.testing.assert_array_equal(host(future.result(timeout=60)), A @ B)
    check(client, x @ y)


@pytest.mark.slow
def test_nobody_comes_back(client, cluster, on_device, x, y):
    """Restricted to workers of which one is lost for good: an error that names it."""
    check(client, x @ y)
    (worker,) = chosen = [any_worker(client)]
    for nanny in cluster.workers.values():
        if nanny.worker_address == worker:
            nanny.close_gracefully()  # once its worker is gone
    with dgpu.enable(client, **(SETTINGS | {"gang_timeout": "4s"})):
        slow_blocks(client, 1.0)
        z = (x @ y).persist(workers=chosen)
        eventually(lambda: running(client))
        send_signal(client, worker)
        begin = time.monotonic()
        with pytest.raises(GangError, match=r"lost a worker.*rank 0.*" + worker):
            client.compute(z).result(timeout=60)
    assert time.monotonic() - begin < 15
    # the old blocks may run on the lost worker alone as long as the failed array lives
    check(client, on_device(A, 61) @ on_device(B, (61, 51)))


@pytest.mark.slow
def test_lost_blocks_may_take_long_to_be_made_again(client, cluster, device, y):
    """What a gang waits for is under way, and longer than the gang itself may stand still."""
    limit = 10 if device == "cuda" else 4  # NCCL takes seconds to connect

    def slowly() -> Any:
        time.sleep(1.5 * limit)
        return A

    x = da.from_delayed(dask.delayed(slowly)(), A.shape, A.dtype)
    if device == "cuda":
        import cupy

        x = x.map_blocks(cupy.asarray)
    slow_blocks(client, 0.3)
    with dgpu.enable(client, **(SETTINGS | {"gang_timeout": f"{limit}s"})):
        future = client.compute(x @ y)
        eventually(lambda: running(client), seconds=2 * limit + 20)
        send_signal(client, any_worker(client))
        np.testing.assert_array_equal(host(future.result(timeout=120)), A @ B)


@pytest.mark.slow
def test_stopped_rank(client, cluster, x, y):
    """A rank that neither dies nor answers is named within the time limit."""
    check(client, x @ y)
    with dgpu.enable(client, **(SETTINGS | {"gang_timeout": "4s", "gang_grace": "1s"})):
        slow_blocks(client, 0.3)
        worker = any_worker(client)
        future = client.compute((x @ y) * 1)
        error = error_once_stopped(client, worker, future, seconds=20)
        assert error.rank is not None
        assert error.worker is not None
        assert error.phase is not None
        revive(cluster, worker)
    check(client, (x + 0) @ y)


@pytest.mark.slow
def test_stopped_while_others_compute(client, cluster, x, y):
    """What others compute for long does not excuse a rank that does not answer."""
    check(client, x @ y)

    def slowly(block: Any) -> Any:
        time.sleep(2)
        return block

    with dgpu.enable(client, **(SETTINGS | {"gang_timeout": "3s", "gang_grace": "1s"})):
        worker = any_worker(client)
        future = client.compute(x.map_blocks(slowly, dtype=x.dtype) @ y)
        error = error_once_stopped(client, worker, future, seconds=10)
        assert error.worker == worker
        revive(cluster, worker)


@pytest.mark.slow
@pytest.mark.parametrize("error", [MemoryError, ValueError])
def test_kernel_raises(client, cluster, x, y, error):
    check(client, x @ y)
    worker = any_worker(client)

    workers, text = [worker], "no room for a panel"
    if error is MemoryError:  # it has run again with less, perhaps without that rank
        workers = sorted(client.scheduler_info()["workers"])
        text = rf"ran out of memory twice: with .* planned on a rank, and with .*; .*{text}; set"
    client.run(spoil_blocks, error("no room for a panel"), workers=workers)
    with pytest.raises(error, match=text) as raised:
        client.compute((x @ y) + 1).result(timeout=60)
    assert any(each in note for note in raised.value.__notes__ for each in workers)
    client.run(restore_blocks, workers=workers)
    eventually(lambda: left_over(client) == 0)
    # the failed one is remembered as long as its future is, as any failed task in Dask
    check(client, (x + 0) @ y)


@pytest.mark.slow
def test_warm_up_fails(client, cluster, x, y):
    """The thread that runs programs outlives whatever meets it."""

    def spoil(dask_worker: Any) -> None:
        member = dask_worker.plugins[PLUGIN].member
        member.join, member.mended = None, member.join

    def mend(dask_worker: Any) -> None:
        member = dask_worker.plugins[PLUGIN].member
        member.join = member.mended

    check(client, x @ y)
    client.run(spoil)
    dgpu.enable(client, **SETTINGS)
    time.sleep(0.5)
    client.run(mend)
    check(client, x @ y)


@pytest.mark.slow
def test_cancelled(client, cluster, x, y):
    check(client, x @ y)
    slow_blocks(client, 0.5)
    future = client.compute((x @ y) * 1)
    eventually(lambda: running(client))
    future.cancel()
    with pytest.raises(CancelledError):
        future.result(timeout=60)
    eventually(lambda: left_over(client) == 0)
    check(client, (x @ y) + 0)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cancelled", "failed"])
def test_others_in_flight_are_not_harmed(client, cluster, x, y, how):
    """One of several products ends early, and with it the communicator of all."""
    check(client, x @ y)
    slow_blocks(client, 0.1)
    futures = [client.compute((x + i) @ y) for i in range(4)]
    eventually(lambda: running(client))
    if how == "cancelled":
        futures[0].cancel()
    else:

        def give_up(dask_scheduler: Any) -> None:
            plugin = dask_scheduler.plugins[PLUGIN]
            run = next(run for run in plugin.runs.values() if run.epoch)
            plugin.endings.fail(run, GangError("it had to end", 0, run.members[0], "program"))

        client.run_on_scheduler(give_up)
        with pytest.raises(GangError, match="it had to end"):
            client.gather(futures)
    ended = 0
    for i, future in enumerate(futures):
        if future.status in ("cancelled", "error"):
            ended += 1
            continue
        np.testing.assert_array_equal(host(future.result(timeout=60)), (A + i) @ B)
    assert ended == 1
    eventually(lambda: left_over(client) == 0)


@pytest.mark.slow
def test_cancelled_while_it_is_staged(client, cluster, x, y):
    for i in range(10):
        future = client.compute((x + i) @ y)
        time.sleep(0.02 * i)
        future.cancel()
    eventually(lambda: left_over(client) == 0)
    check(client, x @ y)


@pytest.mark.slow
def test_interrupted(client, cluster, x, y):
    """Ctrl-C in a cell: the caller stops waiting and forgets the future."""
    check(client, x @ y)
    slow_blocks(client, 0.5)
    timer = signal.setitimer(signal.ITIMER_REAL, 1.0)
    previous = signal.signal(signal.SIGALRM, _interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            ((x @ y) * 1).sum().compute()
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, previous)
    eventually(lambda: left_over(client) == 0 and not running(client))
    check(client, x @ y)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kills_at_random_moments(client, cluster, device, x, y):
    kills = 30 if device == "cpu" else 6  # a worker with a GPU takes long to come back
    slow_blocks(client, 0.05)
    for result in killed_at_random(
        client, cluster, lambda: client.compute((x @ y) * 1), kills=kills, seed=11, seconds=0.8
    ):
        np.testing.assert_array_equal(result, A @ B)
