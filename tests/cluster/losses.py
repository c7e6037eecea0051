"""What the tests share in which a worker is lost."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from distributed import Client, Future

from tests.cluster.conftest import start_cluster
from tests.cluster.observe import (
    PLUGIN,
    eventually,
    host,
    left_over,
    running,
    send_signal,
    settled,
)


def killed_at_random(
    client: Client,
    cluster: Any,
    submit: Callable[[], Future],
    *,
    kills: int,
    seed: int,
    seconds: float,
) -> Iterator[Any]:
    """Submit again and again and kill a worker within so many seconds; yield the results."""
    chance = random.Random(seed)
    for _ in range(kills):
        eventually(lambda: settled(cluster), seconds=60)
        future = submit()
        time.sleep(chance.uniform(0, seconds))
        victim = chance.choice(sorted(cluster.scheduler.workers))
        send_signal(client, victim)
        yield host(future.result(timeout=100))
        future.release()
        eventually(lambda victim=victim: victim not in cluster.scheduler.workers)
    eventually(lambda: left_over(client) == 0)


def slow_programs(client: Client, seconds: float) -> None:
    """Have every program begin late, whatever it calls."""

    def slow_down(dask_worker: Any) -> None:
        device = dask_worker.plugins[PLUGIN].member.device
        begin = type(device).begin

        def late() -> None:
            time.sleep(seconds)
            begin(device)

        device.begin = late

    client.run(slow_down)


def restore_programs(dask_worker: Any) -> None:
    """Have programs of this worker begin at once again."""
    del dask_worker.plugins[PLUGIN].member.device.begin


class Losses:
    """Tests on a cluster of their own, which they may damage."""

    @pytest.fixture
    def cluster(self, device: str) -> Iterator[Any]:
        with start_cluster(device) as cluster:
            yield cluster

    slow = staticmethod(slow_programs)

    def result_after_loss(self, client: Client, future: Future) -> Any:
        """Kill a worker as soon as the program runs; return the result on the host."""
        eventually(lambda: running(client))
        send_signal(client, sorted(client.scheduler_info(n_workers=-1)["workers"])[-1])
        value = host(future.result(timeout=60))
        eventually(lambda: left_over(client) == 0)
        return value

    def killed_at_random(
        self,
        client: Client,
        cluster: Any,
        device: str,
        submit: Callable[[], Future],
        *,
        kills: int = 10,
        seed: int,
        seconds: float,
    ) -> Iterator[Any]:
        self.slow(client, 0.1)
        if device == "cuda":
            kills = 3  # a worker with a GPU takes long to come back
        return killed_at_random(client, cluster, submit, kills=kills, seed=seed, seconds=seconds)
