"""Figures of a cluster: pickled, shown, and used by predictions."""

from __future__ import annotations

import pickle
from dataclasses import replace

import dask.array as da
import pytest

import dask_dgpu as dgpu
from dask_dgpu.cost import ClusterConfig
from dask_dgpu.errors import DgpuError
from graph_opt.model.cost import FIGURES, HOST
from tests.support.clusters import explained, facts_of

FIGURE = {
    "bandwidth": 7e8,
    "dask_bandwidth": 2e8,
    "float32.square": 5e10,
    "float32.tall": 9e9,
    "float32.vector": 2e9,
}
FACTS = facts_of(4, hardware="4 x CPU", figures=FIGURE)
CONFIG = ClusterConfig(FACTS)


def test_a_configuration_pickles() -> None:
    loaded = pickle.loads(pickle.dumps(CONFIG))
    assert dict(loaded.facts.figures) == FIGURE
    assert loaded.machine == CONFIG.machine
    assert loaded.facts.kind == FACTS.kind


def test_without_a_client_there_is_nothing_to_measure() -> None:
    with pytest.raises(DgpuError, match="expected a client, got none"):
        ClusterConfig.detect()
    with pytest.raises(DgpuError, match="expected a client, got none"):
        CONFIG.use()
    with pytest.raises(TypeError, match=r"expected client to be a distributed\.Client, got 'me'"):
        ClusterConfig.detect("me")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected again to be True or False"):
        ClusterConfig.detect(again="yes")  # type: ignore[arg-type]


def test_a_table_tells_measured_figures_from_defaults() -> None:
    sources = {line.split()[0]: line.split()[-1] for line in str(CONFIG).splitlines() if line}
    assert sources["bandwidth"] == sources["float32.tall"] == "measured"
    assert sources["latency"] == sources["flops"] == "default"
    assert {*FIGURES} < sources.keys()
    assert "700 MB/s" in str(CONFIG)
    assert "9 Gflop/s" in str(CONFIG)
    assert "<td>700 MB/s</td>" in CONFIG._repr_html_()


def test_figures_replace_defaults() -> None:
    assert FACTS.machine.bandwidth == 7e8
    assert FACTS.machine.dask_rate == 2e8
    assert FACTS.machine.latency == HOST.latency
    assert FACTS.machine.measured == ("bandwidth", "dask_bandwidth", "products")
    assert FACTS.machine.product_rate((4096, 512, 16), "float32") == 9e9


def test_the_optimizer_decides_by_measured_figures() -> None:
    """Dask's transfers are quick enough on one cluster, and too slow on another."""
    x = da.zeros((2048, 2048), chunks=1024)
    quick = {"dask_bandwidth": 1e12, "bandwidth": 1e6, "task_seconds": 1e-6}
    slow = {"dask_bandwidth": 1e6, "bandwidth": 1e12, "task_seconds": 1e-6}
    assert not explained(x @ x, figures=quick).rewritten
    assert len(explained(x @ x, figures=slow).rewritten) == 1


def test_explain_says_whether_rates_are_measured() -> None:
    x = da.zeros((8, 8), chunks=4)
    with dgpu.enable(when="always"):
        shown = dgpu.explain(x @ x)
    assert str(shown).endswith("rates: defaults, not measured")
    assert shown.to_dict()["measured"] == []
    measured = replace(shown, measured=FACTS.machine.measured)
    last = str(measured).splitlines()[-1]
    assert last.startswith(
        "rates: measured on this cluster, except latency, memory_bandwidth, task"
    )
