"""Data that a client sends to a gang: its tasks hold it, on the same workers in each step."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, wait

from tests.cluster.faults import slow_blocks
from tests.cluster.losses import Losses
from tests.cluster.observe import nothing_left
from tests.cluster.test_kept_programs import (
    CHUNK,
    check,
    counted,
    data,
    expected,
    program,
    watch_launches,
    watch_no_more,
)

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.parametrize("device", ["cpu"], indirect=True),  # data of the host
]


def sent(values: Any, chunks: int) -> da.Array:
    return da.from_array(values, chunks=chunks)


def tasks_of_last(dask_scheduler: Any) -> int:
    """Number of tasks of the last computation."""
    return sum(map(len, dask_scheduler.computations[-1].groups))


@pytest.mark.usefixtures("no_stealing")
def test_each_step_has_one_task_a_block_and_the_same_program(client: Client) -> None:
    def compute(seed: int) -> int:
        values = data(seed)
        x = sent(values, CHUNK)
        z = (x @ x.T).sum(axis=0)
        np.testing.assert_allclose(z.compute(), (values @ values.T).sum(axis=0))
        return x.npartitions + 1 + z.npartitions

    compute(0)
    client.run(watch_launches)
    for seed in range(1, 6):
        own = compute(seed)
        joining = 1  # the blocks of the result
        assert client.run_on_scheduler(tasks_of_last) == own + joining
    assert counted(client) == {"launches": {5}, "programs": {0}, "asked": {0}}
    client.run(watch_no_more)


@pytest.mark.parametrize("second", ["with a task", "in memory", "again"])
@pytest.mark.parametrize("first", ["with a task", "in memory", "again"])
def test_graphs_whose_tasks_hold_data_or_not(client: Client, first: str, second: str) -> None:
    """Those of one array have equal keys; Dask keeps the tasks that it had first."""
    values = data(3)
    x = sent(values, CHUNK)

    def compute(how: str) -> None:
        if how == "with a task":
            z, y = dask.persist(x @ x.T, x[:CHUNK] + 1)
            np.testing.assert_array_equal(y.compute(), values[:CHUNK] + 1)
        else:
            kept = x.persist() if how == "in memory" else None
            wait(kept)
            z = (x @ x.T).persist()
        held.append(z)
        np.testing.assert_allclose(z.compute(), values @ values.T)

    held: list[da.Array] = []
    compute(first)
    compute(second)
    del held[:]
    nothing_left(client)


@pytest.mark.slow
@pytest.mark.timeout(300)
class TestLosses(Losses):
    def test_data_that_a_lost_worker_had(self, client: Client, cluster: Any) -> None:
        check(sent, range(2))
        slow_blocks(client, 0.05)
        z = client.compute(program(sent(data(5), CHUNK)))
        value = self.result_after_loss(client, z)
        np.testing.assert_allclose(value, expected(data(5)), rtol=1e-12)
        z.release()
        check(sent, range(6, 8))
        nothing_left(client)
