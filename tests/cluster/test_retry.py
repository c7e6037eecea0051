"""Gangs that have failed, and that a client computes again or Dask retries."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, Event, Future, futures_of, wait

from dask_dgpu.errors import OutOfMemoryError
from tests.cluster.observe import PLUGIN, held_back, host, nothing_left

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

A = np.random.default_rng(47).integers(-9, 9, (60, 60))
SQUARE = A @ A
EXPECTED = SQUARE.T @ A
SECONDS = 60
STEPS = 12


class Fails:
    """A block function that fails on one block, each time as the next of ``kinds`` says."""

    def __init__(self, folder: Path, kinds: list[str]) -> None:
        self.folder = folder
        self.kinds = kinds

    def __call__(self, block: Any) -> Any:
        if block.shape == (15, 15) and int(block.sum()) == SQUARE[:15, :15].sum():
            for number, kind in enumerate(self.kinds):
                if self._is_first(number):
                    self._fail(kind)
        return block

    def _is_first(self, number: int) -> bool:
        try:
            (self.folder / str(number)).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _fail(self, kind: str) -> None:
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise MemoryError("no room") if kind == "memory" else ValueError("not yet")


@pytest.fixture(params=["tasks", "no tasks"])
def x(request: pytest.FixtureRequest, on_device: Any, in_memory: Any) -> da.Array:
    """Return a matrix made by the graph, or in memory, so that no task of the gang runs."""
    make = on_device if request.param == "tasks" else in_memory
    made: da.Array = make(A, 15)
    return made


def failing(x: da.Array, folder: Path, *kinds: str) -> da.Array:
    """Return a product whose gang fails so often."""
    return (x @ x).map_blocks(Fails(folder, list(kinds)), dtype=x.dtype, meta=x._meta).T @ x


def failed(futures: list[Future], kind: type[Exception]) -> None:
    wait(futures, timeout=SECONDS)
    assert {future.status for future in futures} == {"error"}
    assert {type(future.exception()) for future in futures} == {kind}


def let_go(client: Client, x: da.Array, future: Future) -> None:
    """Release a future that has failed; while Dask knows it, it has its error."""
    future.release()
    nothing_left(client, *held(client, x))


def held(client: Client, x: da.Array) -> list[da.Array]:
    return [x] if futures_of(x) else []


@pytest.mark.parametrize(
    ("x", "kinds"),
    [
        ("tasks", ["value"]),
        ("no tasks", ["value", "value", "memory"]),
        pytest.param("no tasks", ["memory", "memory", "memory"], marks=pytest.mark.slow),
        pytest.param("tasks", ["value", "value", "memory"], marks=pytest.mark.slow),
        pytest.param("tasks", ["memory", "memory", "memory"], marks=pytest.mark.slow),
    ],
    indirect=["x"],
)
def test_the_gang_runs_anew(client: Client, x: da.Array, tmp_path: Path, kinds: list[str]) -> None:
    y = failing(x, tmp_path, *kinds)
    for _ in range(max(kinds.count("value"), 1)):
        future = client.compute(y)
        failed([future], ValueError if "value" in kinds else OutOfMemoryError)
        assert client.run_on_scheduler(remembered) == 0
        let_go(client, x, future)
    np.testing.assert_array_equal(host(client.compute(y).result(timeout=SECONDS)), EXPECTED)
    assert len(list(tmp_path.iterdir())) == len(kinds)
    nothing_left(client, *held(client, x))


@pytest.mark.slow
def test_it_is_planned_as_if_nothing_had_happened(
    client: Client, x: da.Array, tmp_path: Path
) -> None:
    y = failing(x, tmp_path, "memory", "value", "memory")
    future = client.compute(y)
    failed([future], ValueError)
    assert client.run_on_scheduler(remembered) == 0
    let_go(client, x, future)
    np.testing.assert_array_equal(host(client.compute(y).result(timeout=SECONDS)), EXPECTED)


def remembered(dask_scheduler: Any) -> int:
    return len(dask_scheduler.plugins[PLUGIN].endings.past)


@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_dask_retries(client: Client, x: da.Array, tmp_path: Path, count: int) -> None:
    future = client.compute(failing(x, tmp_path, *["value"] * count), retries=count)
    np.testing.assert_array_equal(host(future.result(timeout=SECONDS)), EXPECTED)
    del future
    nothing_left(client, *held(client, x))


@pytest.mark.parametrize("kept", [pytest.param(True, marks=pytest.mark.slow), False])
def test_gangs_that_waited_for_it(
    client: Client, in_memory: Callable[..., da.Array], tmp_path: Path, kept: bool
) -> None:
    """They run without tasks, on blocks that never come."""
    x, same = in_memory(A, 15), in_memory(np.eye(60, dtype=A.dtype), 15)
    for attempt in range(2):
        gate = f"gate {kept} {attempt}"
        late = x.map_blocks(held_back, gate, dtype=x.dtype, meta=x._meta)
        steps = [(failing(x, tmp_path, "value") + late).persist()]
        for _ in range(STEPS):
            steps += [(steps[-1] @ same).persist()]
        last = (steps[-1] @ x).persist()
        if not kept:
            steps.clear()
        Event(gate).set()
        if attempt == 0:
            failed(futures_of(last), ValueError)
        else:
            np.testing.assert_array_equal(host(last.compute()), (EXPECTED + A) @ A)
        steps.clear()
        del last
        nothing_left(client, x, same)


@pytest.mark.slow
@pytest.mark.parametrize("meanwhile", [True, False])
def test_a_worker_is_lost(client: Client, x: da.Array, tmp_path: Path, meanwhile: bool) -> None:
    """Between the failure and the next computation, or amid it."""
    y = failing(x, tmp_path, *["value", "kill"][: 1 if meanwhile else 2])
    future = client.compute(y)
    failed([future], ValueError)
    let_go(client, x, future)
    if meanwhile:
        process = client.run(os.getpid)
        os.kill(next(iter(process.values())), signal.SIGKILL)
    np.testing.assert_array_equal(host(client.compute(y).result(timeout=SECONDS)), EXPECTED)
