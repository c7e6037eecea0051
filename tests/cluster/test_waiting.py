"""Gangs that wait for blocks: of tasks on workers, and of other gangs. They need no task either."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, Event, secede, wait

from tests.cluster.faults import restore_blocks, slow_blocks
from tests.cluster.losses import restore_programs, slow_programs
from tests.cluster.observe import (
    PLUGIN,
    eventually,
    held_back,
    host,
    left_over,
    nothing_left,
    running,
    send_signal,
)

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("no_stealing")]

N, CHUNK, STEPS = 48, 12, 6
RNG = np.random.default_rng(37)
A, M = RNG.random((2, N, N)) / N


def waiting(dask_scheduler: Any) -> tuple[int, int]:
    """Return the number of runs, and of those that wait for blocks."""
    plugin = dask_scheduler.plugins[PLUGIN]
    return len(plugin.runs), sum(bool(run.missing) for run in plugin.runs.values())


@pytest.fixture
def x(in_memory: Callable[..., da.Array]) -> da.Array:
    return in_memory(A, CHUNK)


@pytest.fixture
def m(in_memory: Callable[..., da.Array]) -> da.Array:
    return in_memory(M, CHUNK)


def loop(x: da.Array, m: da.Array, steps: int = STEPS) -> tuple[da.Array, Any]:
    """Return the last step of a loop that waits for none, and NumPy's."""
    expected = A
    for _ in range(steps):
        x, expected = (x @ m + x.T).persist(), expected @ M + expected.T
    return x, expected


def test_a_loop_that_does_not_wait_runs_no_task(client, x, m, tasks_run):
    wait(loop(x, m, 1)[0])  # the first run may have to connect
    before = tasks_run()
    z, expected = loop(x, m)
    wait(z)
    assert tasks_run() == before
    np.testing.assert_allclose(host(z.compute()), expected, rtol=1e-12)
    del z
    nothing_left(client, x, m)


@pytest.mark.slow
def test_a_gang_waits_for_tasks_on_workers(client, x, tasks_run):
    def slowly(block: Any) -> Any:
        time.sleep(0.5)
        return block * 2

    with_gangs = tasks_run()
    y = x.map_blocks(slowly, meta=x._meta).persist(optimize_graph=False)
    eventually(partial(client.run_on_scheduler, _all_processing, name=y.name), 10)
    z = (y @ y).persist()
    eventually(lambda: client.run_on_scheduler(waiting)[1] == 1, 5)
    wait(z)
    assert tasks_run() == with_gangs + y.npartitions
    np.testing.assert_allclose(host(z.compute()), 2 * A @ (2 * A), rtol=1e-12)
    del y, z
    nothing_left(client, x)


def _all_processing(dask_scheduler: Any, name: str) -> bool:
    states = [ts.state for ts in dask_scheduler.tasks.values() if ts.key[0] == name]
    return bool(states) and set(states) <= {"processing", "memory"}


def test_an_error_of_an_awaited_block(client, x):
    def fail(block: Any) -> Any:
        time.sleep(0.3)
        raise ValueError("no such block")

    y = x.map_blocks(fail, meta=x._meta).persist(optimize_graph=False)
    eventually(partial(client.run_on_scheduler, _all_processing, name=y.name), 10)
    z = ((y @ y).persist() @ x).persist()
    with pytest.raises(ValueError, match="no such block"):
        z.compute()
    del y, z
    nothing_left(client, x)


def test_an_error_of_an_earlier_gang(client, x, m):
    def fail(block: Any) -> Any:
        raise ValueError("no such block")

    y = (x.map_blocks(fail, meta=x._meta) @ m).persist()
    z, _ = loop(y, m, 3)
    with pytest.raises(ValueError, match="no such block"):
        z.compute()
    np.testing.assert_allclose(host((x @ m).compute()), A @ M, rtol=1e-12)
    del y, z
    nothing_left(client, x, m)


def test_a_waiting_gang_is_cancelled(client, x, m):
    slow_programs(client, 0.5)
    try:
        first = (x @ m).persist()
        second = (first @ m).persist()
        eventually(lambda: client.run_on_scheduler(waiting)[1] == 1)
        client.cancel(second)
        np.testing.assert_allclose(host(first.compute()), A @ M, rtol=1e-12)
        del first, second
        nothing_left(client, x, m)
    finally:
        client.run(restore_programs)
    np.testing.assert_allclose(host((x @ m).compute()), A @ M, rtol=1e-12)


@pytest.mark.parametrize("fetched", [False, True], ids=["here", "fetched"])
def test_a_stage_task_that_begins_and_ends_in_one_event_leaves_no_block(client, x, m, fetched):
    gate = f"gate-{fetched}"

    def first_is_held_back(block: Any, block_info: Any) -> Any:
        if block_info[0]["chunk-location"] != (0, 0):
            return block
        secede()  # the worker computes its other blocks meanwhile
        return held_back(block, gate)

    y = x.map_blocks(first_is_held_back, meta=x._meta).persist(optimize_graph=False)
    z = (y @ m).persist()
    eventually(lambda: client.run_on_scheduler(waiting)[1] == 1)
    eventually(lambda: client.run_on_scheduler(_begin_and_end_stage_task, fetched=fetched))
    Event(gate).set()
    wait(z)
    eventually(lambda: left_over(client) == 0)
    del z, y
    nothing_left(client, x, m)


async def _begin_and_end_stage_task(dask_scheduler: Any, fetched: bool) -> bool:
    """Begin one whose blocks are computed; release it before its worker knows of it.

    It runs on a worker without its block if that shall be ``fetched``. Return whether there was
    such a task.
    """
    (run,) = dask_scheduler.plugins[PLUGIN].runs.values()
    stages = dask_scheduler.tasks[run.key].dependencies
    ready = (ts.key for ts in stages if all(block.who_has for block in ts.dependencies))
    stage = next(ready, None)
    if stage is None:
        return False
    (block,) = dask_scheduler.tasks[stage].dependencies
    owners = {ws.address for ws in block.who_has}
    others = {address for address in dask_scheduler.workers if address not in owners}
    dask_scheduler.set_restrictions({stage: others if fetched else owners})
    began: tuple[dict[Any, Any], dict[Any, Any]] = {}, {}
    ended: tuple[dict[Any, Any], dict[Any, Any]] = {}, {}
    dask_scheduler._transitions({stage: "waiting"}, *began, "begin")
    dask_scheduler._transitions({stage: "released"}, *ended, "end")
    dask_scheduler.send_all(*began)
    await asyncio.sleep(0.2)  # a worker may be slow to read what follows
    dask_scheduler.send_all(*ended)
    return True


@pytest.mark.slow
def test_intermediate_steps_are_dropped(client, x, m):
    z, expected = loop(x, m, 20)
    np.testing.assert_allclose(host(z.compute()), expected, rtol=1e-12)
    nothing_left(client, x, m, z)
    del z
    nothing_left(client, x, m)


def test_another_client_reads_an_awaited_result(cluster, client, x, m):
    slow_blocks(client, 0.02)
    try:
        z, expected = loop(x, m)
        eventually(lambda: client.run_on_scheduler(_is_known, key=z.__dask_keys__()[0][0]))
        with Client(cluster, set_as_default=False) as other:
            again = other.compute((z + 1).sum())
            assert host(again.result(timeout=60)) == pytest.approx((expected + 1).sum())
    finally:
        client.run(restore_blocks)


def _is_known(dask_scheduler: Any, key: Any) -> bool:
    return key in dask_scheduler.tasks


@pytest.mark.slow
@pytest.mark.parametrize("holding", [True, False])
@pytest.mark.parametrize("delay", [0.0, 0.3, 0.9])
def test_killed_while_gangs_wait(client, x, m, holding, delay):
    slow_blocks(client, 0.05)
    z, expected = loop(x, m)
    eventually(lambda: running(client))
    time.sleep(delay)
    holders = client.run_on_scheduler(_holders)
    others = set(client.scheduler_info(n_workers=-1)["workers"]) - holders
    victims = sorted(holders if holding and holders else others or holders)
    send_signal(client, victims[0])
    np.testing.assert_allclose(host(client.compute(z).result(timeout=90)), expected, rtol=1e-12)
    client.run(restore_blocks)
    del z
    nothing_left(client, x, m)


def _holders(dask_scheduler: Any) -> set[str]:
    runs = dask_scheduler.plugins[PLUGIN].runs.values()
    return {run.holder for run in runs if run.holder is not None}
