"""Predictions of plain Dask: the number of tasks is Dask's own, and seconds follow the work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask._task_spec import Alias, DataNode
from dask.array.optimization import optimize

import dask_dgpu as dgpu
from tests.support.clusters import explained

DASK_BANDWIDTH = 1e8
Function = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    with dgpu.enable(local_ranks=2, when="always", on_error="raise"):
        yield


def predicted(z: da.Array, **facts: Any) -> tuple[int, float]:
    """Return the tasks and seconds of plain Dask on four workers."""
    totals = explained(z, fuse=False, **facts).totals
    assert totals is not None
    return totals.dask_tasks, totals.dask_seconds


def seconds(z: da.Array, **facts: Any) -> float:
    return predicted(z, **facts)[1]


def random(n: int, chunk: int) -> da.Array:
    return da.random.default_rng(0).random((n, n), chunks=chunk)


FUNCTIONS: dict[str, Function] = {
    "chain": lambda x: np.exp(x * 2 + 1) / 3,
    "centred": lambda x: x - x.mean(axis=0),
    "covariance": lambda x: (x - x.mean(axis=0)).T @ (x - x.mean(axis=0)),
    "spread": lambda x: x.std(axis=0),
    "slices": lambda x: x[1:, 1:] - x[:-1, :-1],
    "transpose": lambda x: x + x.T,
    "einsum": lambda x: da.einsum("ij,jk->ik", x, x),
    "iteration": lambda x: x @ (x @ x[:, 0]),
    "few blocks": lambda x: (x + 1)[:8, :8].sum(),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize("chunk", [16, 8])
def test_tasks_are_those_that_dask_runs(function: Function, chunk: int) -> None:
    with dask.annotate(dgpu=False):  # nothing else is chosen
        z = function(random(32, chunk))
    tasks = optimize(z.dask, z.__dask_keys__()).values()
    run = [task for task in tasks if not isinstance(task, DataNode | Alias)]
    assert predicted(z)[0] == len(run)


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_seconds_grow_with_the_size(function: Function) -> None:
    small, large = (seconds(function(random(n, n // 4))) for n in (64, 256))
    assert 0 < small < large < np.inf


def test_work_is_what_functions_read_and_write() -> None:
    x = random(64, 16)
    added = seconds(x + 1) - seconds(x)
    doubled = random(64, 32)
    assert added > 0
    assert seconds(doubled + 1) - seconds(doubled) == pytest.approx(added)
    assert seconds(x**3) > seconds(x**2) == seconds(x + 1)


def test_products_have_the_rate_of_the_machine() -> None:
    x = da.zeros((8, 256, 256), chunks=(2, 256, 256))
    flops = 1e9
    rates = {f"float64.{shape}": flops for shape in ("square", "tall", "vector")}
    assert seconds(x @ x, figures=rates) > 8 * 2 * 256**3 / flops / 4


def test_blocks_of_other_workers_are_received() -> None:
    x = random(64, 16).persist(scheduler="sync")
    rate = {"dask_bandwidth": DASK_BANDWIDTH}
    moved = (seconds(x + x.T, figures=rate) - seconds(x + x, figures=rate)) * DASK_BANDWIDTH
    block = x.nbytes / 16
    assert block < moved < 4 * block  # of four blocks in a row one stays


def test_blocks_of_running_sums_stay() -> None:
    x = random(64, 16).persist(scheduler="sync")
    slow = {"dask_bandwidth": 1.0}
    assert seconds(x.cumsum(axis=0), figures=slow) < x.nbytes / 16
    assert seconds(x + x.T, figures=slow) > x.nbytes / 16


def test_dependent_layers_add_round_trips() -> None:
    x = random(32, 8)
    trip = 0.25
    quick, slow = (
        seconds(x.sum(), figures={"round_trip_seconds": each}) for each in (trip, 2 * trip)
    )
    # submission, report, partial sums of four blocks, and their sum
    assert slow - quick == pytest.approx(4 * trip)


def test_explain_adds_up() -> None:
    x = da.ones((64, 64), chunks=16)
    found = dgpu.explain(np.exp(x @ x.T - 64).sum())
    ((_, region),) = found.regions
    assert found.totals is not None
    assert found.seconds is not None
    assert found.dask_seconds is not None
    assert region.seconds <= found.seconds < found.dask_seconds
    assert (found.totals.tasks, found.totals.seconds) == (2, found.seconds)
    assert found.totals.dask_seconds == found.dask_seconds
    assert found.totals.dask_tasks > 100
    assert found.to_dict()["seconds"] == found.seconds


def test_explain_of_no_gang_has_the_seconds_of_dask() -> None:
    found = dgpu.explain(random(32, 8) + 1)
    assert found.seconds == found.dask_seconds
    assert sum(each.seconds or 0 for each in found.operations) == pytest.approx(found.seconds)


@pytest.mark.parametrize("fuse", [True, False])
def test_explain_without_a_gang_knows_fused_kernels(fuse: bool) -> None:
    x = da.ones((256, 64), chunks=(32, 64))
    with dgpu.enable(local_ranks=2, fuse=fuse):
        e = np.exp(x - x.max(axis=1, keepdims=True))
        found = dgpu.explain(e / e.sum(axis=1, keepdims=True))
    assert not found.regions
    assert found.seconds is not None
    assert found.dask_seconds is not None
    assert (found.seconds < found.dask_seconds) is fuse
    assert fuse or found.seconds == found.dask_seconds
