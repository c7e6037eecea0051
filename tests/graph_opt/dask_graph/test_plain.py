"""Dask's own tasks of a region, under names of their own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import dask.array as da
import numpy as np

from graph_opt.dask_graph.plain import Plain

A = np.arange(24.0).reshape(4, 6)


def region(source: da.Array, result: da.Array, blocks: list[tuple[int, ...]]) -> Any:
    """Return what a region says of the arrays that it reads and makes."""
    read = tuple(np.ndindex(source.numblocks))
    return SimpleNamespace(inputs=((source, read),), wanted=((result.name, tuple(blocks)),))


def test_tasks_between_inputs_and_what_is_wanted() -> None:
    x = da.from_array(A, chunks=(2, 3))
    z = (x @ x.T + 1).rechunk((1, 4))
    plain = Plain.of(z.dask, region(x, z, [(1, 0), (3, 0)]))
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


def test_a_p2p_rechunk_goes_by_tasks() -> None:
    """Those of Dask's own find each other by their names, which cannot change."""
    x = da.from_array(A, chunks=(2, 3))
    z = x.rechunk((4, 2), method="p2p")
    assert type(z.dask.layers[z.name]).__name__ == "P2PRechunkLayer"
    given = {
        (x.name, *index): x.blocks[index].compute(scheduler="sync") for index in np.ndindex(2, 2)
    }
    made = Plain.of(z.dask, region(x, z, [(0, 0), (0, 2)])).blocks(given)
    for column in (0, 2):
        expected = A[:, 2 * column : 2 * column + 2]
        np.testing.assert_array_equal(made[z.name, 0, column], expected)
