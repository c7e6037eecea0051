"""Many calls leave nothing: memory, files, threads, tasks."""

from __future__ import annotations

import gc
import threading
from typing import Any

import dask.array as da
import numpy as np
import psutil
import pytest
from distributed import Client

import dask_dgpu as dgpu
from tests.calls.test_jit import tasks_of
from tests.cluster.observe import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

CALLS = 3_000

BYTES_A_CALL = 4_096
"""The last 10,000 calls are kept, so that they can be repeated; others leave nothing."""

SPARE = 8
"""Connections and threads that Dask's pools may add."""


def used() -> dict[str, int]:
    """Return what this process has."""
    gc.collect()
    process = psutil.Process()
    return {
        "bytes": process.memory_info().rss,
        "files": process.num_fds(),
        "threads": threading.active_count(),
    }


def all_used(client: Client) -> dict[str, dict[str, int]]:
    """Return what the client, with its scheduler, and the workers have."""
    return {"client": used(), **client.run(used)}


def call(x: da.Array, calls: int) -> None:
    """Call a program on its results; read one in ten, and one in a hundred by Dask."""
    step = dgpu.jit(lambda x, rate: (x - rate * x, x.sum()))
    for at in range(calls):
        x, total = step(x, 1e-3 / (1 + at))
        if at % 10 == 0:
            assert np.isfinite(float(total))
        if at % 100 == 0:
            (x + 1).sum().compute()
    float(total)


@pytest.mark.timeout(400)
def test_calls_leave_nothing(client: Client, placed: da.Array) -> None:
    call(placed, CALLS // 3)
    eventually(lambda: tasks_of(client) <= 16)
    before: dict[str, Any] = all_used(client)
    call(placed, CALLS)
    eventually(lambda: tasks_of(client) <= 16)
    for name, own in all_used(client).items():
        assert own["files"] <= before[name]["files"] + SPARE, name
        assert own["threads"] <= before[name]["threads"] + SPARE, name
        assert own["bytes"] <= before[name]["bytes"] + (8 << 20) + BYTES_A_CALL * CALLS, name
