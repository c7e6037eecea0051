"""Data that only a gang reads is part of its ``stage`` tasks; other blocks keep their keys."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import dask.array as da
import numpy as np
import pytest
from dask.array.optimization import optimize

from graph_opt.dask_graph.emit import embedded
from graph_opt.dask_graph.internals import DataNode, GraphNode
from graph_opt.model.names import is_gang, is_stage
from tests.graph_opt.graphs import array, emitted, keys_of

A, B = array(11, 13, chunks=(4, 5)), array(13, 7, chunks=(5, 3), seed=1)

Key = Any


def tasks_of(
    *arrays: da.Array, exist: Callable[[Collection[Key]], Collection[Key]] = lambda keys: ()
) -> dict[Key, GraphNode]:
    keys = keys_of(*arrays)
    return embedded(optimize(emitted(*arrays), keys), set(keys), exist)


def blocks_in(tasks: dict[Key, GraphNode]) -> set[Key]:
    """Return the keys of data."""
    return {key for key, task in tasks.items() if type(task) is DataNode}


def check(tasks: dict[Key, GraphNode], *arrays: da.Array) -> None:
    for x in arrays:
        found = da.Array(tasks, x.name, x.chunks, meta=x)
        np.testing.assert_array_equal(
            found.compute(scheduler="sync", optimize_graph=False), x.compute()
        )


def test_one_task_a_block() -> None:
    z = A @ B
    tasks = tasks_of(z)
    assert len(tasks) == A.npartitions + B.npartitions + 1 + z.npartitions
    assert not any(task.dependencies for key, task in tasks.items() if is_stage(key))
    check(tasks, z)


def test_blocks_with_another_reader_are_keys() -> None:
    z, y = A @ B, A[:4] + 1
    tasks = tasks_of(z, y)
    assert blocks_in(tasks) == {(A.name, 0, k) for k in range(3)}
    check(tasks, z, y)


def test_blocks_of_two_gangs_are_keys() -> None:
    z, y = A @ B, A.T @ A
    tasks = tasks_of(z, y)
    assert sum(map(is_gang, tasks)) == 2
    assert blocks_in(tasks) == set(keys_of(A))
    check(tasks, z, y)


def test_requested_blocks_are_keys() -> None:
    z = A @ B
    tasks = tasks_of(z, A)
    assert blocks_in(tasks) == set(keys_of(A))
    check(tasks, z, A)


def test_blocks_on_workers_are_keys() -> None:
    z, some = A @ B, keys_of(A)[0]
    tasks = tasks_of(z, exist=lambda keys: {some} & set(keys))
    assert blocks_in(tasks) == {some}
    check(tasks, z)


@pytest.mark.parametrize("z", [A + 1, (A + 1) @ (B * 2)], ids=["no gang", "computed blocks"])
def test_other_graphs_stay_as_they_are(z: da.Array) -> None:
    graph = optimize(emitted(z), keys_of(z))
    assert embedded(graph, set(keys_of(z)), lambda keys: ()) == graph
