"""A loop without a cluster leaves nothing behind in its process."""

from __future__ import annotations

import gc
from collections import Counter
from typing import Any

import dask.array as da
import numpy as np
import psutil
import pytest

import dask_dgpu as dgpu
from dask_dgpu.kernels.device.host import return_memory

WARM_UP, ROUNDS = 100, 500
FEW = 100
"""Objects of a type: Dask's caches fill, and a leak would be one object a round."""

SIDE = 16
MOST_GROWTH = 4 << 20
"""Bytes; a plan that each round left would be several MiB."""


def sizes() -> tuple[Counter[Any], dict[str, int]]:
    """Return the number of objects by type, and the sizes of this process."""
    gc.collect()
    return_memory()
    process = psutil.Process()
    objects = Counter(type(each) for each in gc.get_objects())
    return objects, {
        "memory": process.memory_info().rss,
        "threads": process.num_threads(),
        "descriptors": process.num_fds(),
    }


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_loop_leaves_nothing_behind() -> None:
    a = np.random.default_rng(0).random((SIDE, SIDE)) / SIDE
    w = a
    with dgpu.enable(local_ranks=2, when="always", on_error="raise"):
        x = da.from_array(a, chunks=SIDE // 2).persist()
        y = x

        def loop(rounds: range) -> None:
            nonlocal w, y
            for number in rounds:
                step = 0.1 / (number + np.e)
                w, y = w - step * (a @ w), (y - step * (x @ y)).persist()
                if number % 10 == 0:
                    total = float((y * y).sum().compute())
                    np.testing.assert_allclose(total, (w * w).sum(), rtol=1e-10)

        loop(range(WARM_UP))
        objects_before, before = sizes()
        loop(range(WARM_UP, ROUNDS))
        objects, after = sizes()
    more = objects - objects_before
    assert not {kind: number for kind, number in more.items() if number > FEW}
    assert after["memory"] < before["memory"] + MOST_GROWTH
    assert after["threads"] <= before["threads"] + 1
    assert after["descriptors"] <= before["descriptors"] + 1
