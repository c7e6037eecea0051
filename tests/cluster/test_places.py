"""Places of the blocks of a gang that waits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from uuid import uuid4

import dask.array as da
import pytest
from dask.core import flatten
from distributed import Event, wait

from dask_dgpu.planner.present import present_on
from tests.cluster.observe import (
    eventually,
    held_back,
    nothing_left,
)
from tests.cluster.test_waiting import CHUNK, A, M, _all_processing, waiting

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("no_stealing")]


@pytest.fixture
def x(in_memory: Callable[..., da.Array]) -> da.Array:
    return in_memory(A, CHUNK)


@pytest.fixture
def m(in_memory: Callable[..., da.Array]) -> da.Array:
    return in_memory(M, CHUNK)


def test_blocks_of_a_waiting_gang_have_the_places_that_they_will_have(client, x, m):
    """So plans of what reads them do not depend on time, and predictions are right."""
    present = present_on(client.scheduler_info()["id"], client)
    gate = f"gate-{uuid4()}"
    y = x.map_blocks(held_back, gate, meta=x._meta).persist(optimize_graph=False)
    eventually(partial(client.run_on_scheduler, _all_processing, name=y.name))
    z = (y + m.T).persist()
    eventually(lambda: client.run_on_scheduler(waiting)[1] == 1)
    keys = list(flatten(z.__dask_keys__()))
    likely = present.places(keys)
    Event(gate).set()
    wait(z)
    assert len(set(likely.values())) == len(client.nthreads())
    assert likely == present.places(keys)
    del y, z
    nothing_left(client, x, m)
