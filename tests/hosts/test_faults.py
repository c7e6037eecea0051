"""A link between hosts fails while a gang runs: the right result or a named error, in time."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client

from dask_dgpu.errors import GangError
from tests.cluster.observe import eventually, host, left_over, running
from tests.hosts.cluster import HostCluster
from tests.hosts.network import Network

pytestmark = [pytest.mark.hosts, pytest.mark.slow, pytest.mark.timeout(100)]

SIZE, CHUNK = 600, 200
LIMIT = 5.0 + 12.0
"""Seconds: the gang's time limit, and that of Dask's connections, which fail beside it."""

A = np.random.default_rng(3).random((SIZE, SIZE))

ALGORITHMS: dict[str, tuple[Callable[[da.Array], da.Array], Callable[[Any], Any]]] = {
    "matmul": (lambda x: x @ x, lambda a: a @ a),
    "fft": (lambda x: da.fft.fft2(x), lambda a: np.fft.fft2(a)),
    "rechunk": (lambda x: x.rechunk((SIZE, 7)), lambda a: a),
}

FAULTS: dict[str, Callable[[Network], None]] = {
    "disconnected": lambda network: network.cut("c"),
    "lost packets": lambda network: network.lose("c", 5),
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("fault", FAULTS)
def test_fault(
    network: Network, cluster: HostCluster, client: Client, fault: str, algorithm: str
) -> None:
    compute, numpy = ALGORITHMS[algorithm]
    x, expected = da.from_array(A, chunks=CHUNK), numpy(A)
    try:
        future = client.compute(compute(x))
        eventually(lambda: running(client) or future.done())
        FAULTS[fault](network)
        began = time.monotonic()
        with suppress(GangError):
            np.testing.assert_allclose(host(future.result(timeout=60)), expected, atol=1e-8)
        assert time.monotonic() - began < 2 * LIMIT
        future.release()
    finally:
        network.mend("c")
    eventually(lambda: cluster.complete(client), 60)
    again = client.compute(compute(x)).result(timeout=60)
    np.testing.assert_allclose(host(again), expected, atol=1e-8)
    del again
    eventually(lambda: left_over(client) == 0)
