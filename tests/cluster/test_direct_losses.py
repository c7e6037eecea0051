"""Runs without tasks lose a worker at each phase, or the cluster changes while they wait."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest

from tests.cluster.faults import slow_blocks
from tests.cluster.losses import Losses, killed_at_random
from tests.cluster.observe import PLUGIN, eventually, host, nothing_left, running

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

N, CHUNK, STEPS = 60, 17, 12
A = np.random.default_rng(31).random((N, N)) / N


@pytest.fixture
def x(in_memory: Callable[..., da.Array]) -> da.Array:
    return in_memory(A, CHUNK)


def loop(x: da.Array, steps: int = STEPS) -> tuple[da.Array, Any]:
    """Return the last step of a loop that waits for none, and NumPy's."""
    y, expected = x, A
    for _ in range(steps):
        y, expected = (y @ x + y.T).persist(), expected @ A + expected.T
    return y, expected


def die_in(dask_worker: Any, phase: str, after: int) -> None:
    """End the process of one rank in a phase of the next run: the holder, or one after it."""
    plugin = dask_worker.plugins[PLUGIN]
    loop = dask_worker.loop
    chosen: list[bool] = []
    launch = dask_worker.stream_handlers["dgpu-launch"]
    finish, send, join = plugin._finish, plugin._send, plugin.member.join

    def end_if(now: str) -> None:
        if now == phase and chosen[-1]:
            os._exit(9)

    def launching(**fields: Any) -> None:
        chosen.append((fields["run_id"] + after) % fields["size"] == fields["rank"])
        end_if("launch")
        launch(**fields)

    def joining(**fields: Any) -> Any:
        end_if("join")
        return join(**fields)

    def finishing(job: Any, blocks: Any) -> None:
        end_if("finish")
        finish(job, blocks)
        if phase == "reported" and chosen[-1]:
            loop.call_later(0.1, os._exit, 9)

    def sending(op: str, **facts: Any) -> None:
        if op == "dgpu-finished":
            end_if("stored")
            if phase == "reported" and not chosen[-1]:
                loop.call_later(0.5, send, op, **facts)  # the run ends after the loss
                return
        send(op, **facts)

    dask_worker.stream_handlers["dgpu-launch"] = launching
    plugin._finish, plugin._send, plugin.member.join = finishing, sending, joining


def heal(dask_worker: Any) -> None:
    """Undo this on a worker that lives."""
    plugin = dask_worker.plugins[PLUGIN]
    for each, name in ((plugin, "_finish"), (plugin, "_send"), (plugin.member, "join")):
        each.__dict__.pop(name, None)
    dask_worker.stream_handlers["dgpu-launch"] = plugin._launch


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("phase", ["launch", "join", "finish", "stored", "reported"])
def test_a_rank_is_lost(client, cluster, x, phase, after):
    np.testing.assert_allclose(host((x @ x).compute()), A @ A)
    workers = set(cluster.scheduler.workers)
    client.run(die_in, phase=phase, after=after)
    z, expected = loop(x, 3)
    eventually(lambda: len(workers & set(cluster.scheduler.workers)) < len(workers))
    client.run(heal, workers=list(workers & set(cluster.scheduler.workers)))
    np.testing.assert_allclose(host(client.compute(z).result(timeout=90)), expected, rtol=1e-12)
    del z
    nothing_left(client, x)
    np.testing.assert_allclose(host((x @ x).compute()), A @ A)


class TestTheClusterChanges(Losses):
    """While a loop runs that waits for nothing; stealing is on, as on every cluster."""

    def test_a_worker_is_retired(self, client, cluster, x):
        slow_blocks(client, 0.02)
        z, expected = loop(x)
        eventually(lambda: running(client))
        leaving = sorted(cluster.scheduler.workers)[1]
        client.retire_workers([leaving])
        assert leaving not in cluster.scheduler.workers
        np.testing.assert_allclose(host(client.compute(z).result(timeout=90)), expected, rtol=1e-12)
        del z
        nothing_left(client, x)

    @pytest.mark.parametrize("device", ["cpu"], indirect=True)  # every GPU has a worker already
    def test_a_worker_joins_and_leaves(self, client, cluster, x):
        slow_blocks(client, 0.02)
        for workers in (5, 3):
            z, expected = loop(x)
            eventually(lambda: running(client))
            cluster.scale(workers)
            eventually(lambda n=workers: len(cluster.scheduler.workers) == n, 60)
            value = client.compute(z).result(timeout=90)
            np.testing.assert_allclose(host(value), expected, rtol=1e-12)
            del z
            nothing_left(client, x)

    @pytest.mark.timeout(600)
    def test_kills_at_random_moments(self, client, cluster, device, x):
        begun = []

        def submit():
            z, expected = loop(x, 4)
            begun.append(expected)
            return client.compute(z)

        kills = 30 if device == "cpu" else 6  # a worker with a GPU takes long to come back
        slow_blocks(client, 0.02)
        for result in killed_at_random(client, cluster, submit, kills=kills, seed=5, seconds=0.6):
            np.testing.assert_allclose(result, begun.pop(), rtol=1e-12)
        nothing_left(client, x)
