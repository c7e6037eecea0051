"""Blocks of results that wait on workers: fetched from where they were made, or made again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, Event, futures_of, wait

from dask_dgpu.errors import GangError
from tests.cluster.faults import deliver_by_tasks, deliver_directly
from tests.cluster.observe import PLUGIN, eventually, host, launched_runs, left_over, running
from tests.cluster.test_delivery import CHUNK, A, _gang_worker

pytestmark = pytest.mark.cluster


@pytest.fixture
def x(on_device: Callable[..., da.Array]) -> da.Array:
    return on_device(A, CHUNK).persist()


@pytest.fixture
def by_tasks(client: Client) -> Iterator[None]:
    """Have ``out`` tasks return the blocks of results, as if their workers knew these tasks."""
    client.run(deliver_by_tasks)
    yield
    client.run(deliver_directly)


@contextmanager
def one_worker_is_busy(client: Client, z: da.Array) -> Iterator[list[Any]]:
    """Yield the futures of a product, of which those on a busy worker wait.

    So its gang's task stays in memory, with the blocks on the workers that made them.
    """
    client.run(_close_gate)
    futures = futures_of(client.persist(z))
    gang = eventually(lambda: running(client) and client.run_on_scheduler(_gang_worker))
    busy = min(set(client.scheduler_info(n_workers=-1)["workers"]) - {gang})
    blocker = client.submit(_block, workers=[busy], pure=False)
    assert Event("blocked", client=client).wait(timeout=60)
    try:
        client.run(_open_gate)
        waiting = eventually(lambda: client.run_on_scheduler(_waiting, worker=busy))
        eventually(lambda: sum(future.done() for future in futures) == len(futures) - waiting)
        yield futures
    finally:
        Event("go on", client=client).set()
        blocker.result(timeout=60)
        for name in ("blocked", "go on"):
            Event(name, client=client).clear()


def _block() -> None:
    Event("blocked").set()
    Event("go on").wait(timeout=60)


def _waiting(worker: str, dask_scheduler: Any) -> int:
    """Number of blocks that a worker is to take."""
    runs = dask_scheduler.plugins[PLUGIN].runs.values()
    outs = [out for run in runs for out in dask_scheduler.tasks[run.key].dependents]
    return sum(
        out.processing_on is not None and out.processing_on.address == worker for out in outs
    )


def _close_gate(dask_worker: Any) -> None:
    """Have programs wait before they begin."""
    device = dask_worker.plugins[PLUGIN].member.device
    begin, gate = type(device).begin, threading.Event()

    def late() -> None:
        gate.wait(60)
        begin(device)

    device.begin, device.gate = late, gate


def _open_gate(dask_worker: Any) -> None:
    device = dask_worker.plugins[PLUGIN].member.device
    device.gate.set()
    del device.begin, device.gate


def keep_waiting(client: Client, futures: list[Any]) -> tuple[list[Any], int]:
    """Drop the futures that are done; return the others, and how many were dropped."""
    late = [future for future in futures if not future.done()]
    dropped = len(futures) - len(late)
    assert late
    assert dropped
    del futures[:]
    eventually(lambda: client.run_on_scheduler(_known, key=late[0].key) == len(late))
    return late, dropped


@pytest.mark.usefixtures("by_tasks")
def test_dropped_blocks_are_asked_for_again(client, x):
    z = x @ x
    before = launched_runs(client)
    with one_worker_is_busy(client, z) as futures:
        late, asked = keep_waiting(client, futures)
        again = client.persist(z)
        eventually(lambda: sum(future.done() for future in futures_of(again)) == asked)
        assert launched_runs(client) == before + 1
    np.testing.assert_array_equal(host(again.compute()), A @ A)
    late.clear()
    again = None
    eventually(lambda: left_over(client) == 0)


def _known(key: Any, dask_scheduler: Any) -> int:
    """Number of blocks there are of the array that a key belongs to."""
    return sum(each[0] == key[0] for each in dask_scheduler.tasks if type(each) is tuple)


@pytest.mark.usefixtures("by_tasks")
def test_block_is_fetched_from_the_worker_that_made_it(client, x):
    z = x @ x
    before = launched_runs(client)
    with one_worker_is_busy(client, z) as futures:
        moved = client.run_on_scheduler(_move, keys=[f.key for f in futures if not f.done()])
        assert moved
        eventually(lambda: all(future.done() for future in futures))
        found = client.gather(futures)
    assert launched_runs(client) == before + 1
    blocks = {future.key[1:]: host(block) for future, block in zip(futures, found, strict=True)}
    for (i, j), block in blocks.items():
        rows, columns = (slice(k * CHUNK, (k + 1) * CHUNK) for k in (i, j))
        np.testing.assert_array_equal(block, (A @ A)[rows, columns])


@pytest.mark.usefixtures("by_tasks")
def test_block_that_cannot_be_fetched_is_made_again(client, x):
    z = x @ x
    before = launched_runs(client)
    client.run(_refuse)
    try:
        with one_worker_is_busy(client, z) as futures:
            client.run_on_scheduler(_move, keys=[f.key for f in futures if not f.done()])
            eventually(lambda: any(client.run(_asked).values()))
        wait(futures, timeout=60)
    finally:
        client.run(_give)
    assert all(future.status == "finished" for future in futures)
    assert launched_runs(client) == before + 2


def _refuse(dask_worker: Any) -> None:
    """Have a worker answer as if its connection were lost."""
    gangs = dask_worker.plugins[PLUGIN]
    gangs.asked = 0

    def refuse(**what: Any) -> None:
        gangs.asked += 1
        raise OSError("the connection is lost")

    dask_worker.handlers["dgpu_take"] = refuse


def _asked(dask_worker: Any) -> int:
    return int(dask_worker.plugins[PLUGIN].asked)


def _give(dask_worker: Any) -> None:
    gangs = dask_worker.plugins[PLUGIN]
    dask_worker.handlers["dgpu_take"] = gangs._take
    del gangs.asked


def _move(keys: list[Any], dask_scheduler: Any) -> int:
    """Send tasks to another worker than the one that has their blocks."""
    for key in keys:
        here = dask_scheduler.tasks[key].processing_on.address
        dask_scheduler.set_restrictions({key: {min(set(dask_scheduler.workers) - {here})}})
    dask_scheduler.transitions(dict.fromkeys(keys, "released"), stimulus_id="test")
    return len(keys)


@pytest.mark.usefixtures("by_tasks")
def test_lost_blocks_are_made_again(client, x):
    z = x @ x
    before = launched_runs(client)
    with one_worker_is_busy(client, z) as futures:
        client.run(_lose)
    np.testing.assert_array_equal(host(client.gather(futures[0])), (A @ A)[:CHUNK, :CHUNK])
    wait(futures)
    assert all(future.status == "finished" for future in futures)
    assert launched_runs(client) == before + 2


@pytest.mark.usefixtures("by_tasks")
def test_blocks_that_are_lost_time_and_again_are_an_error(client, x):
    client.run(_lose_always)
    try:
        with pytest.raises(GangError, match="lost a block 4 times"):
            client.compute(x @ x).result(timeout=60)
    finally:
        client.run(_lose_no_more)
    np.testing.assert_array_equal(host((x @ x.T).compute()), A @ A.T)


class Forgetful(dict):  # type: ignore[type-arg]
    """What workers keep of runs, of which nothing is kept."""

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, {})


def _lose(dask_worker: Any) -> None:
    dask_worker.plugins[PLUGIN].results.clear()


def _lose_always(dask_worker: Any) -> None:
    dask_worker.plugins[PLUGIN].results = Forgetful()


def _lose_no_more(dask_worker: Any) -> None:
    dask_worker.plugins[PLUGIN].results = {}
