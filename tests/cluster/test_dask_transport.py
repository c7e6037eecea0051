"""Gangs whose blocks travel over Dask's own connections, in plain text and with TLS."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from distributed.security import Security

import dask_dgpu as dgpu
from tests.cluster.conftest import SETTINGS, forked_cluster, start_cluster
from tests.cluster.faults import slow_blocks
from tests.cluster.observe import (
    PLUGIN,
    eventually,
    has_both_times,
    left_over,
    running,
    send_signal,
    transports,
)

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(240)]

RNG = np.random.default_rng(24)
A = RNG.integers(-9, 9, (307, 211))
B = RNG.integers(-9, 9, (211, 190))


@contextmanager
def secure_cluster(n_workers: int = 3) -> Iterator[Any]:
    """Start workers whose connections have TLS and certificates."""
    with forked_cluster(n_workers, security=Security.temporary()) as cluster:
        yield cluster


def links(client: Client) -> int:
    """Return the number of epochs with links on all workers."""
    counts = client.run(lambda dask_worker: len(dask_worker.plugins[PLUGIN].member.links))
    return sum(counts.values())


@pytest.fixture(params=["tcp", "tls"])
def secured(request: pytest.FixtureRequest) -> Iterator[Client]:
    start = {"tcp": partial(start_cluster, "cpu", 3), "tls": secure_cluster}[request.param]
    with start() as cluster, Client(cluster) as client:
        assert all(each.startswith(request.param) for each in client.scheduler_info()["workers"])
        chosen = {} if request.param == "tls" else {"comm": "dask"}  # with TLS by itself
        with dgpu.enable(client, **chosen, **SETTINGS):
            yield client


def test_product_region_and_loss_of_a_worker(secured):
    client = secured
    x, y = da.from_array(A, 60), da.from_array(B, 50)
    np.testing.assert_array_equal((x @ y).compute(), A @ B)
    z = client.compute((x @ y).rechunk((307, 10)).sum(axis=1))
    np.testing.assert_array_equal(z.result(timeout=60), (A @ B).sum(axis=1))
    assert has_both_times(dgpu.explain(x @ y, measured=True))
    assert transports(client) == {"StreamComm"}

    slow_blocks(client, 0.3)
    future = client.compute((x @ y) * 1)
    eventually(lambda: running(client))
    send_signal(client, sorted(client.scheduler_info()["workers"])[1])
    np.testing.assert_array_equal(future.result(timeout=60), A @ B)
    np.testing.assert_array_equal((x @ y).compute(), A @ B)
    eventually(lambda: left_over(client) == 0)


def test_large_blocks(secured):
    """Messages above the size of a frame."""
    wide = 3 * (2**24 // 8 + 1)
    x = da.arange(3.0 * wide, chunks=wide).reshape(3, wide).rechunk((3, wide // 3))
    wanted = 3 * da.arange(wide, chunks=wide // 3) + 3 * wide
    assert (x.sum(axis=0) == wanted).all().compute()
    assert transports(secured) == {"StreamComm"}


def test_workers_leave_nothing_of_an_epoch(secured):
    client = secured
    x = da.from_array(A, 60)
    np.testing.assert_array_equal((x.T @ x).compute(), A.T @ A)
    assert links(client) == 3
    client.restart()
    assert links(client) == 0
    np.testing.assert_array_equal((x.T @ x).compute(), A.T @ A)


@pytest.mark.parametrize("secured", ["tls"], indirect=True)
def test_plain_text_beside_tls_only_with_permission(secured):
    client = secured
    x = da.from_array(A, 60)
    with pytest.raises(ValueError, match="for the transport 'ucx' on a cluster with TLS"):
        dgpu.enable(client, comm="ucx", **SETTINGS)
    with dgpu.enable(client, comm="ucx", comm_plaintext=True, **SETTINGS):
        np.testing.assert_array_equal((x.T @ x).compute(), A.T @ A)
    assert "UcxComm" in transports(client)


WITHOUT_TORCH = """
import sys
import dask.array as da, numpy as np, dask_dgpu as dgpu

def loaded():
    return sys.modules.get("torch") is not None

if __name__ == "__main__":
    with dgpu.start(2, device="cpu") as client:
        dgpu.enable(client, when="always", on_error="raise")
        a = np.arange(30.0).reshape(5, 6)
        x = da.from_array(a, chunks=3)
        assert (client.compute(x @ x.T).result(timeout=60) == a @ a.T).all()
        assert dgpu.explain(x @ x.T, measured=False).regions
        z = dgpu.fft.fft2(x).compute()
        np.testing.assert_allclose(z, np.fft.fft2(a), atol=1e-12)
        def comms(dask_worker):
            member = dask_worker.plugins["dask-dgpu"].member
            return [type(comm).__name__ for comm in member._comms.values()]
        print(client.run(comms).values(), loaded(), client.run(loaded).values(),
              client.run_on_scheduler(loaded))
"""


def test_without_torch(tmp_path: Path) -> None:
    """Neither clients, schedulers nor workers on CPUs need torch: here none can import it."""
    (tmp_path / "sitecustomize.py").write_text('import sys; sys.modules["torch"] = None')
    script = tmp_path / "script.py"
    script.write_text(WITHOUT_TORCH)
    path = {"PYTHONPATH": f"{tmp_path}:{Path.cwd()}", "PATH": "/usr/bin:/bin"}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == (
        "dict_values([['StreamComm'], ['StreamComm']]) False dict_values([False, False]) False"
    )
