"""Arrays that the user leaves to Dask: no gang and no kernel; the others are as before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client

import dask_dgpu as dgpu

A = np.random.default_rng(5).random((12, 13))
X = da.from_array(A, chunks=(4, 5))
ALWAYS = {"when": "always", "on_error": "raise"}


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    with dgpu.enable(local_ranks=3, **ALWAYS):
        yield


@pytest.fixture
def client() -> Iterator[Client]:
    """A client, enabled, whose scheduler and workers are in this process."""
    with (
        Client(
            processes=False, n_workers=2, threads_per_worker=1, dashboard_address=":0"
        ) as client,
        dgpu.enable(client, **ALWAYS),
    ):
        yield client


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x @ x.T,
        lambda x: da.fft.fft2(x),
        lambda x: da.einsum("ij,kj->ik", x, x),
        lambda x: x.rechunk((12, 2)),
        lambda x: dgpu.stencil(x),
        lambda x: x - x.mean(axis=0),
        lambda x: x.map_overlap(np.negative, depth=1, boundary=0),
    ],
)
def test_no_gang_computes_it(make: Callable[[Any], da.Array], gangs: list[str]) -> None:
    with dask.annotate(dgpu=False):
        y = make(X)
    assert dgpu.explain(y).regions == ()
    assert all(
        each.why == "dask.annotate(dgpu=False)"
        for each in dgpu.explain(y).operations
        if each.inputs
    )
    found = y.compute(scheduler="sync")
    assert gangs == []
    np.testing.assert_allclose(found, make(X).compute(scheduler="sync"), rtol=1e-12, atol=1e-13)
    assert len(gangs) == 1


def test_what_is_built_outside_is_a_gang(gangs: list[str]) -> None:
    with dask.annotate(dgpu=False):
        y = X @ X.T
    z = y @ X
    np.testing.assert_allclose(z.compute(scheduler="sync"), A @ A.T @ A, rtol=1e-12)
    assert len(gangs) == 1
    assert [each.by for each in dgpu.explain(z).operations if each.operation == "matmul"] == [
        "Dask",
        "gang",
    ]


def test_no_kernel_computes_it() -> None:
    x = da.ones((8, 8), chunks=(2, 8))
    with dask.annotate(dgpu=False):
        y = da.exp(x - x.max(axis=1, keepdims=True))
    assert {each.by for each in dgpu.explain(y).operations} == {"Dask"}
    y = da.exp(x - x.max(axis=1, keepdims=True))
    assert "fused" in {each.by for each in dgpu.explain(y).operations}


@pytest.mark.parametrize("value", [True, None, 0, "no"])
def test_only_false_opts_out(value: Any, gangs: list[str]) -> None:
    with dask.annotate(dgpu=value):
        y = X @ X.T
    y.compute(scheduler="sync")
    assert len(gangs) == 1


@pytest.mark.cluster
def test_known_structures_tell_them_apart(client: Client) -> None:
    for out in (False, True, False, True):
        x = da.ones((8, 8), chunks=4)
        if out:
            with dask.annotate(dgpu=False):
                y = x @ (x + 1)
        else:
            y = x @ (x + 1)
        value = client.compute(y, optimize_graph=True).result(timeout=60)
        np.testing.assert_array_equal(value, np.full((8, 8), 16.0))
        assert bool(dgpu.explain(y, measured=True).regions) is not out

    def launched(dask_scheduler: Any) -> int:
        return int(repr(dask_scheduler.plugins["dask-dgpu"].run_ids)[len("count(") : -1])

    assert client.run_on_scheduler(launched) == 2


@pytest.mark.cluster
@pytest.mark.usefixtures("client")
def test_functions_of_other_schedulers_are_not_copied() -> None:
    """Graphs with a known structure are copies, but only of those that were sent."""
    seen: list[tuple[int, ...]] = []

    def look(block: Any) -> Any:
        seen.append(block.shape)
        return block

    x = da.ones((8, 6), chunks=(4, 6)).map_blocks(look, meta=np.empty((0, 0)))
    np.testing.assert_array_equal((x @ x.T).compute(scheduler="sync"), np.full((8, 8), 6.0))
    assert seen == [(4, 6)] * 2


def test_an_inner_enable_restores_the_outer() -> None:
    outer = dask.config.get("array_optimize")
    with dgpu.enable(local_ranks=2, sum_method="compensated", fft_output_layout="input"):
        assert dask.config.get("array_optimize").settings.local_ranks == 2
        assert X.sum().name.startswith("compensated_sum")
        with dgpu.enable(local_ranks=5):
            assert not X.sum().name.startswith("compensated_sum")
        assert dask.config.get("array_optimize").settings.local_ranks == 2
        assert X.sum().name.startswith("compensated_sum")
        assert dask.config.get("dgpu.fft.output-layout") == "input"
    assert dask.config.get("array_optimize") is outer
    assert dask.config.get("dgpu.fft.output-layout", "any") == "any"
