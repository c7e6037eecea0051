"""New arrays with equal chunks are on equal workers; known structures work on them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.core import flatten
from distributed import Client, Event, wait

import dask_dgpu as dgpu
from tests.cluster.conftest import SETTINGS, start_cluster
from tests.cluster.observe import eventually, held_back, host, send_signal, structures

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("no_stealing")]

RNG = np.random.default_rng(31)


def workers_of(client: Client, x: da.Array) -> list[str]:
    """Return the worker of each block."""
    wait(x)
    found = client.who_has(x)
    return [found[key][0] for key in flatten(x.__dask_keys__())]


def even(client: Client, blocks: int) -> dict[str, int]:
    """Return equal shares of blocks for all workers."""
    workers = client.scheduler_info(n_workers=-1)["workers"]
    return dict.fromkeys(workers, blocks // len(workers))


def test_equal_chunks_have_equal_workers(client):
    arrays = [
        da.random.default_rng(1).random((40, 30), chunks=10),
        da.random.default_rng(2).random((40, 30), chunks=10).astype("float32") + 1,
        da.ones((80, 60), chunks=20),
        da.from_array(RNG.random((40, 30)), chunks=10),
    ]
    busy = client.map(lambda x: x + 1, range(50), pure=False)
    found = [workers_of(client, x.persist()) for x in arrays]
    del busy
    assert all(each == found[0] for each in found)
    assert Counter(found[0]) == even(client, 12)


def test_arrays_that_others_read_are_placed_too(client):
    x = da.random.default_rng(3).random(64, chunks=4)
    y = x.sum()
    x, y = dask.persist(x, y)
    assert Counter(workers_of(client, x)) == even(client, 16)


@pytest.mark.parametrize("blocks", [1, 3, 4, 7, 13])
def test_workers_have_even_shares(client, blocks):
    found = Counter(workers_of(client, da.ones(blocks * 5, chunks=5).persist()))
    workers = len(client.scheduler_info(n_workers=-1)["workers"])
    assert max(found.values()) == -(-blocks // workers)
    assert len(found) == min(blocks, workers)


def test_users_choose_workers(client):
    worker = sorted(client.scheduler_info()["workers"])[-1]
    with dask.annotate(workers=[worker]):
        x = da.ones(40, chunks=5).persist(optimize_graph=False)
    assert set(workers_of(client, x)) == {worker}
    x = client.persist(da.zeros(40, chunks=5), workers=[worker])
    assert set(workers_of(client, x)) == {worker}


def preferred(dask_scheduler: Any) -> int:
    """Number of tasks with a preferred worker."""
    return sum(bool(ts.worker_restrictions) for ts in dask_scheduler.tasks.values())


def held_array(event: str) -> da.Array:
    """Return a new array of eight blocks whose tasks wait for an event."""
    return da.ones(40, chunks=5).map_blocks(held_back, event, meta=np.empty(0))


def test_other_collections_are_left_to_dask(client):
    futures = client.map(held_back, range(8), name="others")
    eventually(lambda: client.run_on_scheduler(_processing) > 0)
    assert client.run_on_scheduler(preferred) == 0
    x = held_array("others").persist()
    eventually(lambda: client.run_on_scheduler(preferred) == 8)
    Event("others").set()
    wait([futures, x])
    assert client.run_on_scheduler(preferred) == 0  # it ends with the computation


def test_arrays_are_left_to_dask_after_disable(cluster):
    with Client(cluster) as client:
        with dgpu.enable(client):
            pass
        x = held_array("disabled").persist()
        eventually(lambda: client.run_on_scheduler(_processing) > 0)
        assert client.run_on_scheduler(preferred) == 0
        Event("disabled").set()
        wait(x)


def _processing(dask_scheduler: Any) -> int:
    return sum(len(ws.processing) for ws in dask_scheduler.workers.values())


@pytest.mark.slow
@pytest.mark.parametrize("computed", [True, False])
def test_the_only_worker_is_lost(device, computed):
    with start_cluster(device, n_workers=1) as cluster, Client(cluster) as client:
        for worker in sorted(client.scheduler_info()["workers"])[1:]:  # of a machine with GPUs
            client.retire_workers([worker])
        (worker,) = client.scheduler_info()["workers"]
        with dgpu.enable(client, **SETTINGS):
            x = held_array("lost").persist()
            eventually(lambda: client.run_on_scheduler(_processing) > 0)
            if computed:
                Event("lost").set()
                wait(x)
            send_signal(client, worker)
            eventually(lambda: worker not in client.scheduler_info()["workers"])
            Event("lost").set()
            np.testing.assert_array_equal(client.compute(x + 2).result(timeout=60), np.full(40, 3))


def test_a_known_structure_is_optimized_once(client, on_device):
    added = []
    for _ in range(5):
        a, b = RNG.random((2, 24, 24))
        x, y = (on_device(values, 8).persist() for values in (a, b))
        wait([x, y])
        before = structures(client)
        z = ((x @ y) / (x + y.T)).mean(axis=0)
        np.testing.assert_allclose(host(z.compute()), (a @ b / (a + b.T)).mean(axis=0))
        added.append(structures(client) - before)
    assert added == [1, 0, 0, 0, 0]


def test_the_first_other_result_makes_no_new_plan(client, on_device):
    values, held, found = RNG.random((2, 24, 24)), [], []
    for a in values:
        x = on_device(a, 8).persist()
        wait(x)
        held.append((x @ x).persist())
        wait(held)
        found.append(structures(client))
    assert found[0] == found[1]
    for a, z in zip(values, held, strict=True):
        np.testing.assert_allclose(host(z.compute()), a @ a)


def test_explain_finds_the_run_of_a_known_structure(client, on_device):
    for _ in range(2):
        a = RNG.random((24, 24))
        x = on_device(a, 8).persist()
        z = x @ x
        np.testing.assert_allclose(host(z.compute()), a @ a)
        assert "measured" in repr(dgpu.explain(z, measured=True)).lower()


def test_persisted_arrays_show_what_made_them_in_the_users_words(client, in_memory):
    for _ in range(2):  # also of a known structure
        x = in_memory(RNG.random((24, 16)), (6, 16))
        z = ((x - x.mean(axis=0)) @ x.T).persist()
        wait(z)
        rows = dgpu.explain(z, measured=True).to_dict()["operations"]
        words = ["mean over axis 0", "x - y", "transpose", "matmul"]
        assert sorted(row["operation"] for row in rows) == sorted(words)
        assert rows[-1]["operation"] == "matmul"
        assert all(row["measured"] > 0 for row in rows)


@pytest.mark.parametrize("lower", [False, True])
def test_a_product_and_a_diagonal_have_a_cholesky_factor(client, in_memory, device, lower):
    n, chunk = 48, 16
    values = RNG.normal(size=(n, n))
    x = in_memory(values, chunk)
    with dask.config.set({"array.backend": "dgpu" if device == "cuda" else "numpy"}):
        found = da.linalg.cholesky(x @ x.T + n * da.eye(n, chunks=chunk), lower=lower)
        factor = host(found.compute())
    wanted = np.linalg.cholesky(values @ values.T + n * np.eye(n))
    np.testing.assert_allclose(factor, wanted if lower else wanted.T, rtol=1e-9, atol=1e-9)
