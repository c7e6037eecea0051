"""Gangs on blocks in memory: no task of theirs runs, unless it must."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import dask.base
import numpy as np
import pytest
from dask.core import flatten
from distributed import futures_of, wait
from distributed.diagnostics.progress import GroupTiming
from distributed.diagnostics.task_stream import TaskStreamPlugin

from tests.cluster.faults import restore_blocks, slow_blocks
from tests.cluster.observe import (
    PLUGIN,
    eventually,
    host,
    kept,
    launched_runs,
    left_over,
    running,
    send_signal,
)

pytestmark = pytest.mark.cluster

N, CHUNK = 60, 17
A = np.random.default_rng(29).integers(-9, 9, (N, N))


@pytest.fixture
def x(in_memory: Callable[..., da.Array]) -> da.Array:
    return in_memory(A, CHUNK)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda x: x @ x, A @ A),
        (lambda x: (x @ x + 1).sum(axis=0), (A @ A + 1).sum(axis=0)),
        (lambda x: da.fft.fft2(x).real, np.fft.fft2(A).real),
    ],
)
def test_no_task_runs(client, x, tasks_run, make, expected):
    make(x).compute()  # the first run may have to connect
    eventually(lambda: kept(client) == x.npartitions)  # else its blocks are found
    before, runs = tasks_run(), launched_runs(client)
    z = make(x).persist()
    wait(z)
    assert tasks_run() == before
    assert launched_runs(client) == runs + 1
    np.testing.assert_allclose(host(z.compute()), expected, atol=1e-9)


def test_results_that_share_inputs_are_one_run(client, x):
    wanted = A.sum(axis=0), (A * A).sum(axis=0)
    runs = launched_runs(client)
    found = dask.base.compute(x.sum(axis=0), (x * x).sum(axis=0))
    assert launched_runs(client) == runs + 1
    for got, expected in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(host(got), expected)
    eventually(lambda: left_over(client) == 0)


@pytest.mark.parametrize("device", ["cpu"], indirect=True)  # GPUs copy numbers in a task
def test_numbers_come_with_the_answer(client, x, tasks_run):
    dask.base.compute(x.sum(), (x @ x).max())  # the first run may have to connect
    eventually(lambda: kept(client) == x.npartitions)
    before, runs, sent = tasks_run(), launched_runs(client), _sent(client)
    found = dask.base.compute((x @ x).sum(), (x * x).max())
    assert found == ((A @ A).sum(), (A * A).max())
    assert [type(number) for number in found] == [np.int64, np.int64]
    assert (tasks_run(), launched_runs(client), _sent(client)) == (before, runs + 1, sent)
    eventually(lambda: not client.run_on_scheduler(_numbers))


def test_a_number_is_an_ordinary_result(client, x):
    future = client.compute((x @ x).sum())
    assert future.result(timeout=60) == client.gather(future) == (A @ A).sum()
    assert client.submit(lambda number: number + 1, future).result(timeout=60) == (A @ A).sum() + 1
    number, least = (x @ x).min(), (A @ A).min()
    before, after = dask.base.persist(number, number + 1)
    assert dask.base.compute(before, after, number) == (least, least + 1, least)


def _sent(client: Any) -> int:
    """Number of answers with results that workers have sent."""
    return sum(client.run(lambda dask_worker: len(dask_worker.transfer_outgoing_log)).values())


def _numbers(dask_scheduler: Any) -> int:
    return len(dask_scheduler.plugins[PLUGIN].numbers)


def test_no_round_waits_for_further_messages(client, x):
    def rounds(numbers: range) -> list[int]:
        return [int((x @ x + number).sum().compute()) for number in numbers]

    rounds(range(1))  # the first one may have to connect
    _space(client, 1000.0)  # seconds between two messages of one stream
    try:
        assert rounds(range(1, 4)) == [(A @ A + number).sum() for number in range(1, 4)]
    finally:
        _space(client, 0.002)


def _space(client: Any, seconds: float) -> None:
    async def on_scheduler(dask_scheduler: Any) -> None:
        set_all(*dask_scheduler.stream_comms.values(), *dask_scheduler.client_comms.values())

    async def on_client() -> None:
        set_all(client.scheduler_comm)

    def set_all(*streams: Any) -> None:
        for stream in streams:
            stream.interval, stream.next_deadline = seconds, None
            stream.waker.set()

    client.run_on_scheduler(on_scheduler)
    client.sync(on_client)


def test_results_are_ordinary_ones(client, x):
    z = (x @ x).persist()
    w = (z @ x).persist()
    assert client.compute(w.sum()).result(timeout=60) == (A @ A @ A).sum()
    np.testing.assert_array_equal(host((z + w).compute()), A @ A + A @ A @ A)
    del z, w
    eventually(lambda: kept(client) == x.npartitions)
    eventually(lambda: left_over(client) == 0)


def test_dashboard_finds_times(client, x, caplog):
    def watch(dask_scheduler: Any) -> None:
        dask_scheduler.add_plugin(TaskStreamPlugin(dask_scheduler), name="stream")
        dask_scheduler.add_plugin(GroupTiming(dask_scheduler), name="groups")

    def keys(dask_scheduler: Any) -> set[Any]:
        return {message["key"] for message in dask_scheduler.plugins["stream"].buffer}

    def watch_no_more(dask_scheduler: Any) -> None:
        dask_scheduler.remove_plugin("stream")
        dask_scheduler.remove_plugin("groups")

    client.run_on_scheduler(watch)
    z = (x @ x).persist()
    wait(z)
    assert set(flatten(z.__dask_keys__())) <= client.run_on_scheduler(keys)
    client.run_on_scheduler(watch_no_more)
    texts = [record.getMessage() for record in caplog.records]
    assert not [text for text in texts if "Plugin failed" in text or "timing" in text]


def test_inputs_are_dropped_at_once(client, in_memory):
    x = in_memory(A, CHUNK)
    z = (x @ x.T).persist()
    del x
    np.testing.assert_array_equal(host(z.compute()), A @ A.T)
    del z
    eventually(lambda: kept(client) == 0)


def test_some_blocks_are_dropped_early(client, x):
    slow_blocks(client, 0.05)
    try:
        futures = futures_of((x @ x).persist())
        rest = futures[::2]
        eventually(lambda: running(client))
        del futures
        wait(rest, timeout=60)
        wanted = x.npartitions + len(rest)
        eventually(lambda: kept(client) == wanted)
        del rest
        eventually(lambda: kept(client) == x.npartitions)
    finally:
        client.run(restore_blocks)


@pytest.mark.parametrize("device", ["cpu"], indirect=True)  # workers with a GPU spill to the host
def test_spilled_blocks_are_read_by_tasks(client, x, tasks_run):
    expected, runs = A @ A, launched_runs(client)
    client.run(_spill)
    before = tasks_run()
    np.testing.assert_array_equal(host((x @ x).compute()), expected)
    assert tasks_run() > before
    assert launched_runs(client) == runs + 2  # it begins at once, and then with tasks


def _spill(dask_worker: Any) -> None:
    while dask_worker.data.fast:
        dask_worker.data.evict()


def test_an_error_of_a_block_reaches_the_caller(client, x):
    def refuse(block: Any) -> Any:
        raise ValueError("no such block")

    z = da.fft.fft2(x.map_blocks(refuse, dtype=x.dtype, meta=x._meta))
    with pytest.raises(ValueError, match="no such block"):
        client.compute(da.fft.ifft2(z).real).result(timeout=60)
    np.testing.assert_array_equal(host((x @ x).compute()), A @ A)
    eventually(lambda: left_over(client) == 0)


def test_cancelled_in_the_midst(client, x):
    slow_blocks(client, 0.1)
    try:
        future = client.compute((x @ x) * 1)
        eventually(lambda: running(client))
        client.cancel(future)
        del future
        eventually(lambda: not client.run_on_scheduler(_runs))
        eventually(lambda: left_over(client) == 0)
    finally:
        client.run(restore_blocks)
    np.testing.assert_array_equal(host((x @ x).compute()), A @ A)
    eventually(lambda: kept(client) == x.npartitions)


def _runs(dask_scheduler: Any) -> int:
    return len(dask_scheduler.plugins[PLUGIN].runs)


def _holder(dask_scheduler: Any) -> Any:
    return next(iter(dask_scheduler.plugins[PLUGIN].runs.values())).holder


@pytest.mark.slow
def test_the_worker_of_a_number_is_killed(client, in_memory):
    x = in_memory(A, CHUNK)
    future = client.compute((x @ x).sum())
    wait(future)
    (holder,) = client.who_has([future])[future.key]
    send_signal(client, holder)
    eventually(lambda: holder not in client.scheduler_info(n_workers=-1)["workers"])
    assert future.result(timeout=60) == (A @ A).sum()


@pytest.mark.slow
@pytest.mark.parametrize("holding", [True, False])
def test_killed_in_the_midst(client, in_memory, holding):
    x = in_memory(A, CHUNK)
    slow_blocks(client, 0.2)
    future = client.compute((x @ x) * 1)
    eventually(lambda: running(client))
    holder = client.run_on_scheduler(_holder)
    assert holder is not None
    others = set(client.scheduler_info(n_workers=-1)["workers"]) - {holder}
    send_signal(client, holder if holding else min(others))
    np.testing.assert_array_equal(host(future.result(timeout=60)), A @ A)
    client.run(restore_blocks)
    eventually(lambda: left_over(client) == 0)
