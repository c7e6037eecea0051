"""The same computations again and again, their results dropped at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, wait

import dask_dgpu as dgpu
from tests.cluster.observe import eventually, host, left_over

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(1200)]

N, CHUNK = 64, 32
A, B = np.random.default_rng(0).random((2, N, N))

KINDS: dict[str, tuple[Callable[[Any, Any], Any], Any]] = {
    "product": (lambda x, y: x @ y, A @ B),
    "transform": (lambda x, y: da.fft.fft2(x), np.fft.fft2(A)),
    "region": (lambda x, y: (x @ y + 1) @ x, (A @ B + 1) @ A),
    "sum": (lambda x, y: dgpu.sum(x @ y, axis=0), (A @ B).sum(axis=0)),
}


@pytest.fixture
def operands(client: Client, on_device: Callable[..., da.Array]) -> list[da.Array]:
    arrays = [on_device(array, CHUNK).persist() for array in (A, B)]
    wait(arrays)
    return arrays


@pytest.mark.parametrize("kind", KINDS)
def test_results_are_dropped_as_soon_as_they_are_there(client, operands, kind, request):
    make, expected = KINDS[kind]
    for _ in range(request.config.getoption("--rounds") // len(KINDS)):
        wait(make(*operands).persist(), timeout=60)
    np.testing.assert_allclose(host(make(*operands).compute()), expected, rtol=1e-12, atol=1e-11)
    eventually(lambda: left_over(client) == 0)


def test_some_results_are_dropped_early(client, operands, request):
    """Some blocks are kept, some are never waited for."""
    chance = np.random.default_rng(1)
    for _ in range(request.config.getoption("--rounds") // 8):
        make, _ = KINDS[str(chance.choice(list(KINDS)))]
        z = make(*operands).persist()
        futures = list(z.dask.values())
        kept = [future for future in futures if chance.random() < 0.5]
        del z, futures
        wait(kept, timeout=60)
        again = make(*operands).persist()
        del kept
        if chance.random() < 0.5:
            wait(again, timeout=60)
        del again
    for make, expected in KINDS.values():
        made = host(make(*operands).compute())
        np.testing.assert_allclose(made, expected, rtol=1e-12, atol=1e-11)
    eventually(lambda: left_over(client) == 0)


def test_several_clients_ask_for_the_same(client, cluster, operands, request):
    rounds = request.config.getoption("--rounds") // 16
    with Client(cluster, set_as_default=False) as other:
        for number in range(rounds):
            make, _ = KINDS[list(KINDS)[number % len(KINDS)]]
            z = make(*operands)
            mine, theirs = client.persist(z), other.persist(z)
            if number % 2:
                del mine
                wait(theirs, timeout=60)
            else:
                del theirs
                wait(mine, timeout=60)
    eventually(lambda: left_over(client) == 0)
