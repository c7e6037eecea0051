"""Predicted seconds of batches: transfers by Dask, by PCIe, or within one process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Literal

import dask.array as da
import pytest

from dask_dgpu.batches.planning import batch_seconds, predict, seconds_of, transfer_rate
from dask_dgpu.cost.config import ClusterConfig
from dask_dgpu.environment.facts import ClusterFacts
from dask_dgpu.environment.settings import read
from dask_dgpu.optimizer import GraphOptimizer

RANKS, LINK, DASK = 2, 1e4, 1e3
FIGURES = (("link_bandwidth", LINK), ("dask_bandwidth", DASK))
X = da.ones((64, 64), chunks=16)
X_BYTES = X.nbytes


def site(device: Literal["cpu", "cuda"], *, windows: bool) -> Any:
    """Return a site of workers; blocks go through windows to GPUs, or through Dask."""
    config = ClusterConfig(ClusterFacts(RANKS, device, 1 << 30, figures=FIGURES))
    optimizer = GraphOptimizer(read({"when": "always", "on_error": "raise"}), config.facts)
    return SimpleNamespace(
        optimizer=optimizer, in_process=False, is_enabled=True, overlaps=windows, ranks=RANKS
    )


@pytest.mark.parametrize(
    ("device", "windows", "rate"),
    [("cuda", True, RANKS * LINK), ("cuda", False, DASK), ("cpu", False, DASK)],
)
def test_transfers_overlap_with_batches(device: Any, windows: bool, rate: float) -> None:
    there, batch, batches = site(device, windows=windows), 1.0, 4
    assert transfer_rate(there) == rate
    compute, first = (batch + batch_seconds(there)) * batches, 0.5
    quick = seconds_of(there, batch, int(first * batches * rate), 0, batches)
    assert quick == pytest.approx(compute + first)
    slow = seconds_of(there, batch, int(100 * rate), 0, batches)
    assert slow == pytest.approx(100 + compute / batches)


def test_batches_through_dask_include_copies_to_gpus() -> None:
    x = X.persist(scheduler="sync")
    through_dask, windows = (predict(site("cuda", windows=each), x @ x) for each in (False, True))
    assert through_dask[0] is not None
    assert windows[0] is not None
    copies = through_dask[0] - windows[0]
    assert copies == pytest.approx(2 * X_BYTES / (RANKS * LINK))


def test_links_are_figures_of_gpus() -> None:
    for device, shown in (("cuda", True), ("cpu", False)):
        config = ClusterConfig(ClusterFacts(RANKS, device, None))
        assert ("link_bandwidth" in str(config)) is shown
        assert (config.machine.link_seconds(1 << 30) > 0) is shown
