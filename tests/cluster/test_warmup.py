"""A warm-up of a cluster: all workers take part, and nothing is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster

import dask_dgpu as dgpu
from tests.cluster.observe import compilations, launched_runs, nothing_left
from tests.support.forked import METHOD

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


def test_all_workers_are_connected(client: Any) -> None:
    before = launched_runs(client)
    dgpu.warmup(client)
    assert launched_runs(client) - before == 14

    def connected(dask_worker: Any) -> int:
        return int(dask_worker.plugins["dask-dgpu"].member.connected)

    assert min(client.run(connected).values()) >= 1
    nothing_left(client)


@pytest.mark.slow
def test_each_kernel_is_compiled_once_on_a_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both workers begin with an empty cache, and need each kernel at the same time."""
    # Dask's ``env`` is set only after the configuration, which may have imported Numba;
    # workers inherit this only if they are spawned, not forked from a server of other tests
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    options = {"threads_per_worker": 1, "dashboard_address": ":0"}
    with (
        dask.config.set({METHOD: "spawn"}),
        LocalCluster(n_workers=2, **options) as cluster,
        Client(cluster) as client,
    ):
        with dgpu.enable(client, on_error="raise"):
            dgpu.warmup(client)
        (missed, hit), (missed_too, hit_too) = client.run(compilations).values()
    once = missed + missed_too
    assert set(once.values()) == {1}
    assert {name.partition("(")[0] for name in once} == {"sweep_bands", "add_compensated"}
    assert hit + hit_too == once  # the other worker read it
    assert any(tmp_path.rglob("*.nbc"))
