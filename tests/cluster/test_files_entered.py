"""How many files of the packages a product enters on a cluster: what a reader has to follow.

The client, the scheduler and the workers count together. The first call plans; the third finds the
structure of its graph known.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from distributed.utils import offload

import dask_dgpu as dgpu
from tests.cluster.conftest import SETTINGS, start_cluster
from tests.support.entered import noting

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

MOST_FIRST, MOST_THIRD = 60, 25

_entered: set[str] = set()


async def watch(hook: Callable[[FrameType, str, object], None] | None) -> None:
    """Let a hook, or none from now on, see the calls of this process.

    It sees the thread that runs the event loop, that in which Dask reads graphs, which an earlier
    cluster may have begun, and new ones.
    """
    threading.setprofile(hook)
    sys.setprofile(hook)
    await offload(sys.setprofile, hook)


async def note_files() -> None:
    """Note files from now on."""
    await watch(noting(_entered))


async def note_no_more() -> None:
    await watch(None)


def noted() -> set[str]:
    """Return the files, and forget them."""
    found = set(_entered)
    _entered.clear()
    return found


@pytest.fixture
def client() -> Iterator[Client]:
    """A client of a cluster whose threads are watched from their beginning."""
    with start_cluster("cpu", 2) as cluster, Client(cluster) as client:
        client.run(note_files)
        client.run_on_scheduler(note_files)
        sys.setprofile(noting(_entered))
        try:
            # which would measure the cluster at the same time
            with dgpu.enable(client, **SETTINGS, cost_measure=False):
                yield client
        finally:
            client.run_on_scheduler(note_no_more)
            sys.setprofile(None)


def files(client: Client) -> set[str]:
    own = noted() | client.run_on_scheduler(noted)
    return own.union(*client.run(noted).values())


def test_a_product_enters_few_files(client: Client) -> None:
    x = client.persist(da.from_array(np.random.default_rng(0).random((60, 44)), chunks=(20, 11)))
    found = []
    for _ in range(3):
        files(client)
        (x @ x.T).compute()
        found.append(files(client))
    assert "dask_dgpu/runtime/execute.py" in found[2]
    assert "dask_dgpu/runtime/scheduler/launch.py" in found[2]
    assert len(found[0]) <= MOST_FIRST, sorted(found[0])
    assert len(found[2]) <= MOST_THIRD, sorted(found[2])
