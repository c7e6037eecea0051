"""A cluster measures its rates once, while it is idle; a lost worker does not stop it."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, default_client

import dask_dgpu as dgpu
from dask_dgpu.cost import ClusterConfig, CostModel
from tests.cluster.conftest import SETTINGS, start_cluster
from tests.cluster.faults import die_while_measuring
from tests.cluster.observe import PLUGIN, eventually, host

FIGURES = {
    *("bandwidth", "latency", "memory_bandwidth", "dask_bandwidth"),
    *("task_seconds", "round_trip_seconds", "step_seconds"),
}
PARTS = ["memory", "exchange", "window", "float32", "float64", "complex64", "complex128"]


@pytest.fixture
def asked(client: Client, cluster: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The parts that workers are asked to measure."""
    rates, parts = cluster.scheduler.plugins[PLUGIN].rates, []
    original = rates._part

    async def part(name: str, *arguments: Any) -> Any:
        parts.append(name)
        return await original(name, *arguments)

    monkeypatch.setattr(rates, "_part", part)
    return parts


@pytest.mark.slow
def test_a_cluster_is_measured_once(
    client: Client, device: str, on_device: Any, asked: list[str]
) -> None:
    config = ClusterConfig.detect(client)
    machine = config.machine
    windows = {"window_seconds"} if device == "cuda" else set()
    assert {*machine.measured} == {*FIGURES, "flops", "products"} | windows
    assert asked == PARTS
    assert ClusterConfig.detect(client) == config
    assert asked == PARTS
    x = on_device(np.ones((64, 64)), 32)
    shown = dgpu.explain(x @ x)
    assert shown.measured == machine.measured
    assert str(shown).endswith("rates: measured on this cluster")
    best = CostModel(config).best_matmul(512, 512, 512)
    assert 0 < best.seconds < 100
    np.testing.assert_array_equal(host((x @ x).compute()), np.full((64, 64), 64.0))


def test_stored_figures_are_used(client: Client) -> None:
    known = dgpu.explain(da.ones((8, 8)) @ da.ones((8, 8))).measured
    facts = dgpu.enable(client, **SETTINGS).optimizer.facts
    config = ClusterConfig(facts.__class__(4, facts.device, None, figures=(("latency", 1.5),)))
    try:
        config.use(client)
        x = da.ones((64, 64), chunks=32)
        shown = dgpu.explain(x @ x)
        assert shown.measured == ("latency",)
        ((_, predicted),) = shown.regions
        assert predicted.seconds > 1.5
        assert ClusterConfig.detect(client).machine.latency == 1.5
    finally:
        client.sync(client.scheduler.dgpu_rates, kind=facts.kind, figures={})
    assert known != ("latency",)


@pytest.mark.slow
def test_a_worker_that_is_lost_while_measuring() -> None:
    with (
        start_cluster("cpu", n_workers=3) as cluster,
        Client(cluster) as client,
        dgpu.enable(client, **SETTINGS),
    ):
        client.run(die_while_measuring, workers=[next(iter(client.scheduler_info()["workers"]))])
        config = ClusterConfig.detect(client)
        assert "dask_bandwidth" not in config.machine.measured
        client.wait_for_workers(3, timeout=60)
        x = da.ones((60, 60), chunks=20)
        np.testing.assert_array_equal((x @ x).compute(), np.full((60, 60), 60.0))
        again = ClusterConfig.detect(client, again=True)
        assert {*FIGURES} < {*again.machine.measured}


@pytest.mark.slow
def test_another_cluster_has_the_default_client() -> None:
    with (
        start_cluster("cpu", n_workers=2) as cluster,
        Client(cluster) as client,
        dgpu.enable(client, **SETTINGS),
        start_cluster("cpu", n_workers=1) as other,
        Client(other) as default,
    ):
        assert default_client() is default
        measured = {*ClusterConfig.detect(client).machine.measured}
        assert measured >= {"dask_bandwidth", "round_trip_seconds", "task_seconds"}


@pytest.mark.slow
def test_one_worker_has_no_messages_to_measure() -> None:
    with (
        start_cluster("cpu", n_workers=1) as cluster,
        Client(cluster) as client,
        dgpu.enable(client, **SETTINGS),
    ):
        measured = {*ClusterConfig.detect(client).machine.measured}
        assert measured >= {"flops", "memory_bandwidth", "products", "step_seconds", "task_seconds"}
        assert not measured & {"bandwidth", "dask_bandwidth", "latency"}


@pytest.mark.slow
def test_a_client_closes_its_cluster_amid_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tasks are released first: workers would report that they are lost."""
    left: list[Any] = []
    close = Client.close

    def noting(self: Client, *args: Any, **kwargs: Any) -> None:
        left.extend(measuring(self))
        close(self, *args, **kwargs)

    def measuring(client: Any) -> list[Any]:
        return [key for key in list(client.cluster.scheduler.tasks) if "dgpu-measure" in str(key)]

    with dask.config.set({"dgpu.cost.measure": True}):
        client = dgpu.start(n_workers=2, threads_per_worker=1, dashboard_address=":0")
        try:
            eventually(lambda: measuring(client), 60)
            monkeypatch.setattr(Client, "close", noting)
        finally:
            client.close()
    assert left == []
