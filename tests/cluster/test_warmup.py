"""A warm-up of a cluster: all workers take part, and nothing is left."""

from __future__ import annotations

from typing import Any

import pytest

import dask_dgpu as dgpu
from tests.cluster.observe import launched_runs, nothing_left

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


def test_all_workers_are_connected(client: Any) -> None:
    before = launched_runs(client)
    dgpu.warmup(client)
    assert launched_runs(client) - before == 14

    def connected(dask_worker: Any) -> int:
        return int(dask_worker.plugins["dask-dgpu"].member.connected)

    assert min(client.run(connected).values()) >= 1
    nothing_left(client)
