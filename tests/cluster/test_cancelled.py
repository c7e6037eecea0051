"""Futures cancelled in mid program, while workers fetch blocks from each other.

Dask uses a connection between two workers again after a block could not be opened. The next fetch
on it then fails, so no block may fail to open, whatever is cancelled.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import CancelledError, Client, Future, futures_of, wait

from tests.cluster.observe import eventually, host, left_over, running

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

A = np.random.default_rng(6).integers(-9, 9, (97, 89)).astype(float)


def dawdle(x: da.Array) -> da.Array:
    """Return the same array, by a step that takes some time."""

    def slowly(block: Any) -> Any:
        time.sleep(0.01)
        return block

    return x.map_blocks(slowly, meta=x._meta)


PROGRAMS: dict[str, Callable[[da.Array], da.Array]] = {
    "product": lambda x: dawdle(x @ x.T) @ x,
    "transform": lambda x: da.fft.ifft2(dawdle(da.fft.fft2(x))).real,
    "rechunked": lambda x: dawdle(x.rechunk((97, 9))).rechunk((9, 89)),
}

MOMENTS: dict[str, Callable[[Client, list[Any]], Any]] = {
    "at once": lambda client, blocks: None,
    "in mid program": lambda client, blocks: eventually(
        lambda: running(client) or all(block.done() for block in blocks)
    ),
    "while blocks travel": lambda client, blocks: wait(blocks, return_when="FIRST_COMPLETED"),
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_nobody_else_is_harmed(client, in_memory, name, moment):
    chance, program, begin = random.Random(name + moment), PROGRAMS[name], time.time()
    wanted = A @ A.T @ A if name == "product" else A
    x = in_memory(A, 20)
    for number in range(10):
        z = program(x + number - number)
        held = z.persist()
        blocks = futures_of(held)
        readers = [read(client, chance.sample(blocks, 5), worker) for worker in workers(client) * 2]
        MOMENTS[moment](client, blocks)
        cancelled = chance.choice([readers[::2], blocks[::2], [*readers, *blocks]])
        client.cancel(cancelled)
        for reader in readers:
            outcome(reader)
        del held, blocks, readers, cancelled
        np.testing.assert_allclose(host(program(x + 0).compute()), wanted, rtol=1e-9, atol=1e-9)
    eventually(lambda: left_over(client) == 0)
    assert not any(client.run(failed_fetches, since=begin).values())


def workers(client: Client) -> list[str]:
    return list(client.scheduler_info(n_workers=-1)["workers"])


def read(client: Client, blocks: list[Any], worker: str) -> Future[float]:
    """Have a worker fetch some blocks."""
    return client.submit(total, blocks, workers=[worker], pure=False)


def total(blocks: list[Any]) -> float:
    return float(sum(block.sum() for block in blocks))


def outcome(reader: Future[float]) -> None:
    """Wait for a reader, which has a sum unless it or a block of it was cancelled."""
    with suppress(CancelledError):
        assert np.isfinite(reader.result(timeout=60))


def failed_fetches(dask_worker: Any, since: float) -> list[Any]:
    """Return the fetches that failed on a worker."""
    return [
        entry
        for entry in list(dask_worker.state.log)
        if entry[0] == "gather-dep-failed" and entry[-1] > since
    ]
