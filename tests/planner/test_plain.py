"""Predictions of plain Dask: the number of tasks is Dask's own, and seconds follow the work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import dask.array as da
import numpy as np
import pytest
from dask.array.optimization import optimize

import dask_dgpu as dgpu
from dask_dgpu.environment.facts import ClusterFacts
from dask_dgpu.environment.settings import read
from dask_dgpu.observe.explain.table import Totals
from dask_dgpu.optimizer import GraphOptimizer
from dask_dgpu.planner.predict import Plain, plain_graph
from graph_opt.dask_graph.internals import Alias, DataNode
from graph_opt.dask_graph.work import USUAL

CLUSTER = ClusterFacts(4, "cpu", None)
MACHINE = CLUSTER.machine
Function = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    with dgpu.enable(local_ranks=2, when="always", on_error="raise"):
        yield


def predicted(z: da.Array, facts: ClusterFacts = CLUSTER) -> Plain:
    reader = GraphOptimizer(read({"fuse": False}), facts).reader(z.dask, z.__dask_keys__())
    return plain_graph(reader, (), (), facts, workers=4, kernels=False)


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
    z = function(random(32, chunk))
    tasks = optimize(z.dask, z.__dask_keys__()).values()
    run = [task for task in tasks if not isinstance(task, DataNode | Alias)]
    assert predicted(z).tasks == len(run)


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_seconds_grow_with_the_size(function: Function) -> None:
    small, large = (predicted(function(random(n, n // 4))).seconds for n in (64, 256))
    assert 0 < small < large < np.inf


def test_work_is_what_functions_read_and_write() -> None:
    x = random(64, 16)
    added = predicted(x + 1).seconds - predicted(x).seconds
    read_and_written = USUAL.passes * 2 * x.nbytes
    assert added == pytest.approx(read_and_written / MACHINE.memory_bandwidth / 4)
    assert predicted(x**3).seconds > predicted(x**2).seconds == predicted(x + 1).seconds


def test_products_have_the_rate_of_the_machine() -> None:
    x = da.zeros((8, 256, 256), chunks=(2, 256, 256))
    seconds = predicted(x @ x).seconds
    assert seconds > 8 * 2 * 256**3 / MACHINE.flops / 4


def test_blocks_of_other_workers_are_received() -> None:
    x = random(64, 16).persist(scheduler="sync")
    moved = (predicted(x + x.T).seconds - predicted(x + x).seconds) * MACHINE.dask_rate
    block = x.nbytes / 16
    assert block < moved < 4 * block  # of four blocks in a row one stays


def test_blocks_of_running_sums_stay() -> None:
    x = random(64, 16).persist(scheduler="sync")
    slow = replace(CLUSTER, figures=(("dask_bandwidth", 1.0),))
    seconds = predicted(x.cumsum(axis=0), slow).seconds
    assert seconds == pytest.approx(predicted(x.cumsum(axis=0)).seconds)  # but for their totals
    assert predicted(x + x.T, slow).seconds > x.nbytes / 16


def test_dependent_layers_add_round_trips() -> None:
    x = random(32, 8)
    here = ClusterFacts(0, "cpu", None)
    there = ClusterFacts(4, "cpu", None)
    two = predicted(x.sum(), there).seconds - predicted(x.sum(), here).seconds
    # submission, report, partial sums of four blocks, and their sum
    assert two == pytest.approx(4 * MACHINE.round_trip_seconds)


def test_explain_adds_up() -> None:
    x = da.ones((64, 64), chunks=16)
    found = dgpu.explain(np.exp(x @ x.T - 64).sum())
    ((_, region),) = found.regions
    assert found.totals is not None
    assert found.seconds is not None
    assert found.dask_seconds is not None
    assert region.seconds <= found.seconds < found.dask_seconds
    assert found.totals == Totals(2, found.seconds, found.totals.dask_tasks, found.dask_seconds)
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
