"""Faults while host arrays go through a cluster in batches."""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dask.utils import format_bytes
from distributed import Client, as_completed

import dask_dgpu as dgpu
from dask_dgpu.errors import OutOfMemoryError
from tests.cluster.conftest import SETTINGS
from tests.cluster.observe import eventually

pytestmark = pytest.mark.cluster

RNG = np.random.default_rng(3)
A, B = RNG.random((600, 200)), RNG.random((200, 100))
LIMITS = {**SETTINGS, "memory_limit": "250 kiB", "memory_safety_margin": 0}


def names(client: Client) -> set[Any]:
    return set(client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks)))


def nothing_left(client: Client, earlier: set[Any]) -> bool:
    gc.collect()  # frames of caught errors
    return names(client) <= earlier and not set(client.futures) - earlier


def test_errors_of_blocks_that_end_together(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    following = as_completed.__next__

    def later(self: as_completed) -> Any:
        time.sleep(1)
        return following(self)

    def root(block: Any) -> Any:
        if (block < 0).any():
            time.sleep(0.3)  # after another block, within its batch
            raise OSError("negative")
        return np.sqrt(block)

    monkeypatch.setattr(as_completed, "__next__", later)
    earlier, x = names(client), -RNG.random((64, 20))
    x[:16] *= -1
    with dgpu.enable(client, **SETTINGS), pytest.raises(OSError, match="negative") as caught:
        dgpu.run(lambda x: x.map_blocks(root, dtype=float), x)
    eventually(lambda: names(client) <= earlier)  # though frames of the error hold operands
    del caught


@pytest.mark.slow
def test_a_batch_that_runs_out_of_memory(client: Client) -> None:
    earlier = names(client)

    class Exhausted:
        shape, dtype = A.shape, A.dtype
        reads = 0

        def __getitem__(self, key: Any) -> Any:
            self.reads += 1
            if self.reads == 3:
                raise MemoryError
            return A[key]

    with dgpu.enable(client, **LIMITS):
        found = dgpu.run("matmul", Exhausted(), B)
    np.testing.assert_allclose(found, A @ B, rtol=1e-12)
    eventually(lambda: nothing_left(client, earlier))


def exhausting(most: int) -> Callable[[Any], Any]:
    """Return a function of unknown shape of blocks of at most so many bytes."""

    def at_most(block: Any) -> Any:
        if block.nbytes > most:
            raise MemoryError(f"{block.nbytes} bytes")
        return block > 0.5

    return lambda x: x[x.map_blocks(at_most, dtype=bool)]


@pytest.mark.slow
@pytest.mark.parametrize("whole", [lambda f: f, lambda f: lambda x: f(x).sum()])
def test_small_operands_have_no_smaller_blocks(client: Client, whole: Any) -> None:
    with dgpu.enable(client, **SETTINGS), pytest.raises(OutOfMemoryError) as caught:
        dgpu.run(whole(exhausting(0)), A)
    (number,) = re.findall(r"[\d.]+ \w*B\b", str(caught.value))
    assert number == format_bytes(A.nbytes // len(client.scheduler_info(n_workers=-1)["workers"]))
    assert "cannot be cut to half of it" in str(caught.value)


@pytest.mark.slow
def test_large_operands_go_once_more_in_smaller_blocks(client: Client) -> None:
    workers = len(client.scheduler_info(n_workers=-1)["workers"])
    x = np.arange((4 * workers) << 21, dtype="u1")  # blocks of 2 MiB, and then of 1 MiB
    with dgpu.enable(client, **SETTINGS):
        found = dgpu.run(exhausting(1 << 20), x)
        np.testing.assert_array_equal(found, x[x > 0])
        with pytest.raises(OutOfMemoryError, match="and with as much in smaller blocks") as caught:
            dgpu.run(exhausting(0), x)
    assert str(caught.value).count("iB") == 2
