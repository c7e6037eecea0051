"""Calls of ``dgpu.run`` on a cluster: their blocks on workers, and faults amid a call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from distributed import Client

import dask_dgpu as dgpu
from dask_dgpu.batches.planning import advice
from dask_dgpu.batches.sites import Cluster, opened
from tests.cluster.conftest import SETTINGS
from tests.cluster.observe import eventually
from tests.cluster.test_run import RNG, names, no_operands

pytestmark = pytest.mark.cluster


SLOW = pytest.mark.slow


TALL, WIDE = RNG.random((6000, 40)), RNG.random((500, 100))


@pytest.fixture
def earlier(client: Client) -> set[Any]:
    """The keys of tasks that others have left on the cluster."""
    return names(client)


@pytest.mark.parametrize(
    "dtype", ["float64", *(pytest.param(each, marks=SLOW) for each in ("int64", "float16"))]
)
def test_parts_of_a_contraction_are_added_on_the_workers(
    client: Client, earlier: set[Any], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = (TALL if dtype == "float16" else 100 * TALL).astype(dtype)
    fetched: list[Any] = []
    fetch = Cluster.blocks

    def fetching(self: Cluster, handle: Any, *room: Any) -> Any:
        fetched.append(handle.shape)
        return fetch(self, handle, *room)

    monkeypatch.setattr(Cluster, "blocks", fetching)
    with dgpu.enable(client, **SETTINGS, memory_limit="300 kiB", memory_safety_margin=0):
        plan = dgpu.plan("einsum", "ij,ik->jk", x, x)
        assert list(plan.cuts) == ["axis 0 of arrays[1]"]
        found = dgpu.run("einsum", "ij,ik->jk", x, x)
    times = plan.batches if dtype == "float16" else 1  # half precision is added in single
    assert fetched == [found.shape] * times
    assert plan.batches > 1
    assert plan.host_bytes == 2 * x.nbytes + times * found.nbytes
    wide = x.astype(float)
    np.testing.assert_allclose(found, wide.T @ wide, rtol=2e-2 if dtype == "float16" else 1e-12)
    eventually(lambda: no_operands(client, earlier))


@pytest.mark.slow
def test_an_operand_that_stays_is_loaded_between_batches(
    client: Client, earlier: set[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a worker holds one part of it."""
    loads: list[tuple[int, ...]] = []
    load = Cluster.load

    def loaded(self: Cluster, part: Any, chunks: Any) -> Any:
        loads.append(part.shape)
        return load(self, part, chunks)

    monkeypatch.setattr(Cluster, "load", loaded)
    with dgpu.enable(client, **SETTINGS, memory_limit="200 kiB", memory_safety_margin=0):
        plan = dgpu.plan("matmul", WIDE, WIDE.T)
        found = dgpu.run("matmul", WIDE, WIDE.T)
    assert [part.copies for part in plan.parts[:3]] == [2, 1, 2]
    assert len(plan.cuts) == 2
    np.testing.assert_allclose(found, WIDE @ WIDE.T, rtol=1e-12)
    columns = plan.cuts["axis 1 of the result"]
    right = sum(shape[0] == 100 for shape in loads)
    assert right == -(-500 // columns) > 1
    assert len(loads) == plan.batches + right
    eventually(lambda: no_operands(client, earlier))


def test_operands_of_functions_are_sent_some_blocks_at_a_time(
    client: Client, earlier: set[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    send_all = Cluster._send_all

    async def counted(self: Cluster, shares: Any, module: Any) -> Any:
        sent.append(max(sum(each.nbytes for each in some.values()) for some in shares.values()))
        return await send_all(self, shares, module)

    monkeypatch.setattr(Cluster, "_send_all", counted)
    monkeypatch.setattr("dask_dgpu.batches.sites.AT_A_TIME", 100 << 10)
    monkeypatch.setattr("dask_dgpu.batches.whole.LEAST", 10 << 10)
    monkeypatch.setattr("dask_dgpu.batches.whole.LARGEST", 20 << 10)
    plan = dgpu.plan(lambda x: x - x.mean(), TALL)
    assert plan.batches >= TALL.nbytes / (20 << 10)
    assert not sent  # a plan sends nothing
    found = dgpu.run(lambda x: x - x.mean(), TALL)
    np.testing.assert_allclose(found, TALL - TALL.mean(), rtol=1e-12, atol=1e-15)
    assert len(sent) > TALL.nbytes / len(client.scheduler_info()["workers"]) / (120 << 10)
    assert max(sent) <= 120 << 10
    eventually(lambda: no_operands(client, earlier))


def test_advice_counts_no_blocks_of_calls_beside(client: Client) -> None:
    with (
        dgpu.enable(client, **SETTINGS, memory_limit="10 MiB", memory_safety_margin=0),
        opened(client) as site,
    ):
        room = site.room / 2  # of two calls at a time
        before = advice(site, "it", 20 << 20, room)
        sent = site.load(TALL, ((3000, 3000), (40,)))
        assert advice(site, "it", 20 << 20, room) == before
        del sent
