"""Blocks of Dask's own work that meet: one gang brings them together, and Dask moves none."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, wait

import dask_dgpu as dgpu
from tests.cluster.observe import eventually, host, launched_runs, left_over

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

A = np.random.default_rng(11).random((44, 44))
FORMS: dict[str, Any] = {
    "transpose": lambda x: x + x.T,
    "reduction": lambda x: x.sum(axis=0),
    "scalar": lambda x: (x * 2).max(),
    "centred": lambda x: x - x.mean(axis=0),
}


def compute(client: Client, y: da.Array) -> tuple[Any, int]:
    """Return a result, and how many gangs it took."""
    before = launched_runs(client)
    result = host(client.compute(y).result(timeout=100))
    eventually(lambda: left_over(client) == 0)
    return result, launched_runs(client) - before


@pytest.mark.parametrize("form", FORMS)
def test_blocks_that_meet_are_one_gang(client, in_memory, form):
    function = FORMS[form]
    result, gangs = compute(client, function(in_memory(A, (11, 11))))
    np.testing.assert_allclose(result, function(A), rtol=1e-12, atol=1e-14)
    assert gangs == 1


def test_arrays_on_different_workers(client, on_device):
    workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
    source = on_device(A, (11, 44))
    x, y = (
        client.persist(source * factor, workers=[worker])
        for factor, worker in zip((1, 2), workers, strict=False)
    )
    wait([x, y])
    explanation = dgpu.explain(x + y)
    assert len(explanation.regions) == 1
    ((_, predicted),) = explanation.regions
    assert explanation.dask_seconds is not None
    assert explanation.dask_seconds >= predicted.dask_seconds  # both know where blocks are
    assert explanation.to_dict()["regions"][0]["moved_bytes"] > 0
    result, gangs = compute(client, x + y)
    np.testing.assert_allclose(result, 3 * A, rtol=1e-12)
    assert gangs == 1
    assert compute(client, x * x)[1] == 0
