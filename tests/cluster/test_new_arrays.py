"""New arrays with equal chunks are on equal workers; known structures work on them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.core import flatten
from distributed import Client, wait

import dask_dgpu as dgpu
from tests.cluster.observe import PLUGIN, host

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("no_stealing")]

RNG = np.random.default_rng(31)


def workers_of(client: Client, x: da.Array) -> list[str]:
    """Return the worker of each block."""
    wait(x)
    found = client.who_has(x)
    return [found[key][0] for key in flatten(x.__dask_keys__())]


def structures(client: Client) -> int:
    """Number of structures that the scheduler keeps."""
    return client.run_on_scheduler(
        lambda dask_scheduler: len(dask_scheduler.plugins[PLUGIN].optimized)
    )


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
    assert Counter(found[0]) == dict.fromkeys(client.scheduler_info()["workers"], 3)


def test_arrays_that_others_read_are_placed_too(client):
    x = da.random.default_rng(3).random(64, chunks=4)
    y = x.sum()
    x, y = dask.persist(x, y)
    assert Counter(workers_of(client, x)) == dict.fromkeys(client.scheduler_info()["workers"], 4)


@pytest.mark.parametrize(("blocks", "most"), [(1, 1), (3, 1), (4, 1), (7, 2), (13, 4)])
def test_workers_have_even_shares(client, blocks, most):
    found = Counter(workers_of(client, da.ones(blocks * 5, chunks=5).persist()))
    assert max(found.values()) == most
    assert len(found) == min(blocks, 4)


def test_users_choose_workers(client):
    worker = sorted(client.scheduler_info()["workers"])[2]
    with dask.annotate(workers=[worker]):
        x = da.ones(40, chunks=5).persist(optimize_graph=False)
    assert set(workers_of(client, x)) == {worker}
    x = client.persist(da.zeros(40, chunks=5), workers=[worker])
    assert set(workers_of(client, x)) == {worker}


def preferred(dask_scheduler: Any) -> int:
    """Number of tasks with a preferred worker."""
    return sum(bool(ts.worker_restrictions) for ts in dask_scheduler.tasks.values())


def test_other_collections_are_left_to_dask(client):
    futures = client.map(abs, range(8))
    wait(futures)
    assert client.run_on_scheduler(preferred) == 0
    x = da.ones(40, chunks=5).persist()
    wait(x)
    assert client.run_on_scheduler(preferred) == 8


def test_arrays_are_left_to_dask_after_disable(cluster):
    with Client(cluster) as client:
        with dgpu.enable(client):
            pass
        x = da.ones(40, chunks=5).persist()
        wait(x)
        assert client.run_on_scheduler(preferred) == 0


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
    # once for all memory, and once for what other results leave, in coarse steps
    assert added[0] == 1
    assert sum(added) <= 2


def test_explain_finds_the_run_of_a_known_structure(client, on_device):
    for _ in range(2):
        a = RNG.random((24, 24))
        x = on_device(a, 8).persist()
        z = x @ x
        np.testing.assert_allclose(host(z.compute()), a @ a)
        assert "measured" in repr(dgpu.explain(z, measured=True)).lower()
