"""Profiles of a cluster: gangs, with tasks and without, Dask's tasks, failures and clients."""

from __future__ import annotations

import time
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.array.optimization import optimize
from distributed import Client, Event, wait

import dask_dgpu as dgpu
from tests.cluster.observe import eventually, held_back, host

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

A = np.random.default_rng(29).random((48, 48))


def refuse(block: Any) -> Any:
    if block.any():
        raise ArithmeticError("no luck")
    return block


def rows_of(prof: dgpu.Profiler, by: str) -> dict[str, dict[str, Any]]:
    return {row["operation"]: row for row in prof.to_dict()["rows"] if row["by"] == by}


def within(found: dict[str, Any], event: dict[str, Any]) -> bool:
    """Whether an event is in its block, if workers err by some seconds in the scheduler's time."""
    return bool(-5 < event["start"] <= event["stop"] < found["seconds"] + 5)


def plugins(client: Client) -> list[str]:
    names = client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.plugins))
    return [name for name in names if "profiler" in name]


def test_bytes_and_seconds_are_those_of_explain(client: Any, on_device: Any) -> None:
    y = da.fft.fft2(on_device(A, (12, 48))).real.rechunk((12, 48))
    with dgpu.Profiler() as prof:
        value = host(client.compute(y).result(timeout=100))
    np.testing.assert_allclose(value, np.fft.fft2(A).real, rtol=1e-10, atol=1e-10)
    (region,) = dgpu.explain(y, measured=True).to_dict()["regions"]
    rows = rows_of(prof, "gang").values()
    sent = sum(row["sent_bytes"] for row in rows)
    assert sent == sum(region["sent_bytes"]) > 0
    assert sum(row["seconds"] for row in rows) == pytest.approx(sum(region["measured"]))
    assert sum(row["wait"] for row in rows) == pytest.approx(sum(region["exposed"]))
    lanes = {event["lane"] for event in prof.to_dict()["events"] if event["track"] == "gang"}
    assert len(lanes) == len(client.scheduler_info(n_workers=-1)["workers"])


def test_bytes_are_those_of_the_plan(client: Any, in_memory: Any) -> None:
    x = in_memory(A, (12, 48))
    with dgpu.Profiler() as prof:
        value = host(client.compute(dgpu.matmul(x, x, strategy="row")).result(timeout=100))
    np.testing.assert_allclose(value, A @ A, rtol=1e-12)
    ranks = len(client.scheduler_info(n_workers=-1)["workers"])
    # every rank needs each of the 4 block rows of the right operand
    row = rows_of(prof, "gang")["matmul"]
    assert row["sent_bytes"] == row["dense_bytes"] == (ranks - 1) * A.nbytes


def test_a_product_without_zeros_has_dense_and_sent_bytes(client: Any, on_device: Any) -> None:
    sparse = np.where(np.arange(48)[:, None] // 12 == np.arange(48) // 12, A, 0)
    x = on_device(sparse, (12, 12))
    y = dgpu.matmul(x, x, strategy="row", sparse_threshold=0.5)
    with dgpu.Profiler() as prof:
        value = host(client.compute(y).result(timeout=100))
    np.testing.assert_allclose(value, sparse @ sparse, rtol=1e-12)
    (region,) = dgpu.explain(y, measured=True).to_dict()["regions"]
    (sent,) = (each for each in region["sent"] if each is not None)
    row = rows_of(prof, "gang")["matmul"]
    assert row["dense_bytes"] - row["sent_bytes"] == sent["exact_bytes"] - sent["nbytes"]
    assert row["sent_bytes"] < 0.5 * row["dense_bytes"]


def test_a_gang_on_blocks_in_memory_is_seen(client: Any, in_memory: Any) -> None:
    x = in_memory(A, (12, 24))
    with dgpu.Profiler() as prof:
        y = (x @ x.T).persist()
        wait(y)
    found = prof.to_dict()
    assert (found["gangs"], found["tasks"], found["running"]) == (1, 0, 0)
    assert rows_of(prof, "gang")["matmul"]["calls"] == 1
    np.testing.assert_allclose(host(y.compute()), A @ A.T, rtol=1e-12)


def test_tasks_of_a_gang_are_one_row(client: Any) -> None:
    x = da.from_array(A, chunks=(12, 24)).map_blocks(np.sqrt)
    with dgpu.Profiler() as prof:
        client.compute(x @ x.T).result(timeout=100)
    found = prof.to_dict()
    assert found["gangs"] == 1
    rows = rows_of(prof, "Dask")
    assert not any("stage" in name or "gang-" in name for name in rows)
    assert found["tasks"] == sum(row["calls"] for row in rows.values())
    assert (
        rows.keys() >= {"blocks to and from gangs"} or not rows
    )  # the scheduler may have had all in memory


def test_a_program_without_a_gang_is_no_empty_table(client: Any) -> None:
    x = da.ones((48, 48), chunks=12)
    with dask.config.set(array_optimize=optimize), dgpu.Profiler() as prof:
        assert (x + 1).sum().compute() == 2 * 48 * 48
    found = prof.to_dict()
    assert found["gangs"] == 0 < found["tasks"]
    (seconds,) = {row["by"] for row in found["rows"]}
    assert seconds == "Dask"
    assert all(within(found, event) for event in found["events"])
    threads = {event["track"] for event in found["events"]} - {"transfers"}
    assert all(thread.startswith("thread ") for thread in threads)


def test_a_failure_reaches_the_user(client: Any, in_memory: Any) -> None:
    x = in_memory(A, (12, 24))
    y = (x @ x.T).map_blocks(refuse, meta=x._meta)
    prof = dgpu.Profiler(client)
    with pytest.raises(ArithmeticError, match="no luck"), prof:
        (y @ y).compute()
    assert "refuse" not in rows_of(prof, "gang")
    assert plugins(client) == []


def test_work_under_way_does_not_count(client: Any) -> None:
    with dgpu.Profiler() as prof:
        future = client.submit(held_back, 1, "profiled", pure=False)
        eventually(lambda: prof.to_dict()["running"] == 1)  # the record so far
    assert prof.to_dict()["rows"] == []
    assert "1 still running" in str(prof)
    Event("profiled", client=client).set()
    assert future.result(timeout=60) == 1
    assert prof.to_dict()["rows"] == []


def test_profilers_of_several_clients_see_the_same(client: Any, cluster: Any) -> None:
    with Client(cluster, set_as_default=False) as other:
        first, second = dgpu.Profiler(client), dgpu.Profiler(other)
        with first, second:
            other.submit(abs, -1, pure=False).result(timeout=60)
            assert len(plugins(client)) == 2
        for prof in (first, second):
            assert rows_of(prof, "Dask")["abs"]["calls"] == 1
        assert plugins(client) == []


def test_a_client_that_leaves_takes_its_profiler_along(client: Any, cluster: Any) -> None:
    other = Client(cluster, set_as_default=False)
    prof = dgpu.Profiler(other)
    prof.__enter__()
    assert len(plugins(client)) == 1
    other.close()
    with pytest.raises(dgpu.errors.DgpuError, match="its client was closed"):
        prof.__exit__(None, None, None)
    eventually(lambda: plugins(client) == [])
    with pytest.raises(dgpu.errors.DgpuError, match="expected a profiler with a record"):
        prof.table()
    with pytest.raises(ValueError, match="expected client to be connected, got one that is"), prof:
        pass


def test_an_error_is_not_hidden_by_a_lost_record(client: Any, cluster: Any) -> None:
    other = Client(cluster, set_as_default=False)

    def fail() -> None:
        with dgpu.Profiler(other):
            other.close()
            raise ArithmeticError("mine")

    with pytest.raises(ArithmeticError, match="mine"):
        fail()


def test_steps_of_a_gang_share_a_clock_with_tasks(client: Any, in_memory: Any) -> None:
    x = in_memory(A, (12, 24))

    def slow(block: Any) -> Any:
        time.sleep(0.05)
        return block

    with dgpu.Profiler() as prof:
        (x @ x.T).map_blocks(slow, meta=x._meta).rechunk((48, 6)).compute()
    found = prof.to_dict()
    events = [event for event in found["events"] if event["operation"] == "slow"]
    assert {event["track"] for event in events} == {"gang"}
    # a rank may have no block; each block sleeps once
    assert sum(event["stop"] - event["start"] for event in events) > 15 * 0.05
    assert all(within(found, event) for event in events)
