from __future__ import annotations

import dask
import dask.array as da
import numpy as np

from graph_opt.dask_graph.parse import parse
from tests.graph_opt.graphs import array


def test_facts_of_a_layer() -> None:
    x = array(7, 5, chunks=((3, 4), (5,)), dtype="int16")
    node = parse(x.dask, x.__dask_keys__()).node(x.name)
    assert node is not None
    assert (node.name, node.chunks) == (x.name, ((3, 4), (5,)))
    assert (node.dtype, node.container) == ("int16", "numpy.ndarray")
    assert (node.ndim, node.shape, node.blocks, node.known) == (2, (7, 5), 2, True)


def test_unknown_chunks_are_not_known() -> None:
    x = array(7, 5)
    x = x[x[:, 0] > 0]
    node = parse(x.dask, x.__dask_keys__()).node(x.name)
    assert node is not None
    assert not node.known


def test_layers_that_are_no_arrays() -> None:
    delayed = dask.delayed(np.ones)((3, 3))
    x = da.from_delayed(delayed, (3, 3), dtype=float)
    graph = parse(x.dask, x.__dask_keys__())
    assert graph.node(delayed.key) is None
    assert graph.node("no such layer") is None
    assert graph.node(x.name) is not None


def test_layers_that_make_fewer_blocks_than_are_declared() -> None:
    """An axis of one element in chunks (1, 0), which Dask broadcasts."""
    x = array(4, 1, chunks=((3, 1), (1, 0)))
    y = x + 1
    assert parse(x.dask, x.__dask_keys__()).node(x.name) is not None
    assert parse(y.dask, y.__dask_keys__()).node(y.name) is None


def test_requested_names_and_dependents() -> None:
    x = array(7, 5)
    y, z = x + 1, x + 2
    graph = parse((y + z).dask, [y.__dask_keys__(), [[(z.name, 0, 0)]], "single"])
    assert graph.requested == {y.name, z.name, "single"}
    assert graph.dependents[x.name] == {y.name, z.name}


def test_persisted_arrays_keep_their_facts() -> None:
    x = array(7, 5).persist(scheduler="sync")
    node = parse(x.dask, x.__dask_keys__()).node(x.name)
    assert node is not None
    assert (node.chunks, node.dtype) == (((4, 3), (4, 1)), "float64")


def test_nothing_is_materialised() -> None:
    x = array(8, 8) + 1
    z = x @ x
    graph = parse(z.dask, z.__dask_keys__())
    for name in graph.layers:
        graph.node(name)
    assert not z.dask.layers[x.name].is_materialized()
