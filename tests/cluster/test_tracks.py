"""Independent steps on two tracks of GPUs: right again and again, on one track of CPUs too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, wait

import dask_dgpu as dgpu
from tests.cluster.observe import PLUGIN, host, nothing_left

pytestmark = pytest.mark.cluster

N, CHUNK = 600, (170, 250)
CASES: dict[str, Callable[[da.Array, da.Array], da.Array]] = {
    "spectra": lambda x, y: da.fft.ifft2(da.fft.fft2(x) * da.fft.fft2(y)).real,
    "products": lambda x, y: (x @ x.T + y @ y.T) @ (x - y),
    "layouts": lambda x, y: (x.rechunk((N, 50)) + 1) * (y.rechunk((N, 50)) - 1) + x,
    "chains": lambda x, y: x @ x @ x + da.fft.fft2(da.fft.ifft2(y @ y)).real - y.T,
    "sums": lambda x, y: x / dgpu.sum(x @ y, 0) + y / dgpu.sum(y @ x, 1) + (x @ x).mean(),
}


def tracks(client: Client) -> set[int]:
    """Return the numbers of tracks of all workers."""

    def count(dask_worker: Any) -> int:
        return len(getattr(dask_worker.plugins[PLUGIN].member.device, "_tracks", [None]))

    return set(client.run(count).values())


@pytest.mark.parametrize("case", CASES)
def test_independent_steps(client: Client, device: str, in_memory: Any, case: str) -> None:
    rng, build = np.random.default_rng(3), CASES[case]
    for _ in range(4):
        a, b = rng.random((2, N, N)) / N
        x, y = in_memory(a, CHUNK), in_memory(b, CHUNK)
        z = build(x, y).persist()
        wait(z)
        whole = (da.from_array(each, chunks=N) for each in (a, b))
        wanted = build(*whole).compute(scheduler="sync")
        np.testing.assert_allclose(host(z.compute()), wanted, rtol=1e-9, atol=1e-12)
    del x, y, z
    nothing_left(client)
    assert tracks(client) == {2 if device == "cuda" else 1}
