"""Dask's own tasks of a region, under names of their own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import dask.array as da
import numpy as np
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

from graph_opt.dask_graph.plain import Plain

A = np.arange(24.0).reshape(4, 6)


class P2PRechunkLayer(MaterializedLayer):
    """As one of distributed's, by its name."""


def region(source: da.Array, result: da.Array, blocks: list[tuple[int, ...]]) -> Any:
    """Return what a region says of the arrays that it reads and makes."""
    read = tuple(np.ndindex(source.numblocks))
    return SimpleNamespace(inputs=((source, read),), wanted=((result.name, tuple(blocks)),))


def test_tasks_between_inputs_and_what_is_wanted() -> None:
    x = da.from_array(A, chunks=(2, 3))
    z = (x @ x.T + 1).rechunk((1, 4))
    plain = Plain.of(z.dask, region(x, z, [(1, 0), (3, 0)]))
    assert plain is not None
    tasks, keys = plain.tasks("own-")
    assert keys == [(f"own-{z.name}", 1, 0), (f"own-{z.name}", 3, 0)]
    assert all(str(key[0]).startswith("own-") for key in tasks)
    outside = {need for task in tasks.values() for need in task.dependencies} - tasks.keys()
    assert outside == {(x.name, *index) for index in np.ndindex(2, 2)}
    given = {
        (x.name, *index): x.blocks[index].compute(scheduler="sync") for index in np.ndindex(2, 2)
    }
    made = plain.blocks(given)
    for row in (1, 3):
        np.testing.assert_array_equal(made[z.name, row, 0], (A @ A.T + 1)[row : row + 1])


def test_none_where_tasks_find_each_other_by_their_names() -> None:
    x = da.from_array(A, chunks=(2, 3))
    z = x.rechunk((4, 2))
    layers = dict(z.dask.layers)
    layers[z.name] = P2PRechunkLayer(dict(layers[z.name]))
    graph = HighLevelGraph(layers, z.dask.dependencies)
    assert Plain.of(graph, region(x, z, [(0, 0)])) is None
