"""Rates of transfers between host arrays and devices: by Dask, or by PCIe."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dask_dgpu.batches.planning import transfer_rate
from dask_dgpu.cost.config import ClusterConfig
from dask_dgpu.environment.facts import ClusterFacts

RANKS, LINK, DASK = 2, 1e4, 1e3
FIGURES = (("link_bandwidth", LINK), ("dask_bandwidth", DASK))


@pytest.mark.parametrize(
    ("device", "windows", "rate"),
    [("cuda", True, RANKS * LINK), ("cuda", False, DASK), ("cpu", False, DASK)],
)
def test_blocks_go_through_windows_to_gpus(device: Any, windows: bool, rate: float) -> None:
    config = ClusterConfig(ClusterFacts(RANKS, device, 1 << 30, figures=FIGURES))
    facts = SimpleNamespace(machine=config.machine)
    optimizer = SimpleNamespace(facts=facts)
    site: Any = SimpleNamespace(
        optimizer=optimizer, in_process=False, overlaps=windows, ranks=RANKS
    )
    assert transfer_rate(site) == rate


def test_links_are_figures_of_gpus() -> None:
    for device, shown in (("cuda", True), ("cpu", False)):
        config = ClusterConfig(ClusterFacts(RANKS, device, None))
        assert ("link_bandwidth" in str(config)) is shown
        assert (config.machine.link_seconds(1 << 30) > 0) is shown
