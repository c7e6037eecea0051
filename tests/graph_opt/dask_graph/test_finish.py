from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.array.optimization import optimize
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph

from graph_opt.dask_graph.emit import finish
from graph_opt.model.names import GANG, STAGE
from tests.graph_opt.graphs import array, emitted

A, B = array(11, 13, chunks=(4, 5)), array(13, 7, chunks=(5, 3), seed=1)


def finished(z: da.Array) -> Any:
    keys = set(flatten(z.__dask_keys__()))
    graph = emitted(z, keys=list(keys))
    return finish(optimize(graph, keys), keys, graph)


def values(z: da.Array, graph: Any) -> Any:
    (name,) = {key[0] for key in flatten(z.__dask_keys__())}
    return da.Array(graph, name, z.chunks, meta=z).compute(scheduler="sync", optimize_graph=False)


def test_blocks_of_a_part_have_names_of_their_own() -> None:
    z = A @ B
    part = z[:3] + 1
    names = {key[0] for key in finished(part)}
    assert z.name not in names
    assert any(name.startswith(f"{z.name}-") for name in names)
    np.testing.assert_array_equal(values(part, finished(part)), z.compute()[:3] + 1)


def test_those_of_different_parts_differ() -> None:
    z = A @ B
    first, last = (
        {key[0] for key in finished(part) if str(key[0]).startswith(f"{z.name}-")}
        for part in (z[:3] + 1, z[9:] + 1)
    )
    assert len(first) == len(last) == 1
    assert first != last


def test_whole_products_keep_their_names() -> None:
    z = A @ B
    assert z.name in {key[0] for key in finished(z + 1)}
    assert set(flatten(z.__dask_keys__())) <= set(finished(z))


def test_blocks_that_are_asked_for_keep_their_names() -> None:
    z = A @ B
    keys = [(z.name, 0, 0)]
    graph = emitted(z, keys=keys)
    tasks = finish(optimize(graph, keys), set(keys), graph)
    assert (z.name, 0, 0) in tasks
    assert (z.name, 0, 1) not in tasks


def test_annotations_survive_fusion() -> None:
    with dask.annotate(priority=3):
        z = A @ B
    graph = finished(z + 1)
    assert isinstance(graph, HighLevelGraph)
    annotated = [layer for layer in graph.layers.values() if layer.annotations]
    assert [layer.annotations for layer in annotated] == [{"priority": 3}]
    names = {key[0] for key in annotated[0]}
    assert z.name in names
    assert {kind for kind in (STAGE, GANG) if any(n.startswith(kind) for n in names)} == {
        STAGE,
        GANG,
    }
    np.testing.assert_array_equal(values(z + 1, graph), z.compute() + 1)


def test_each_gang_has_its_own_annotations() -> None:
    with dask.annotate(priority=3):
        y = A @ A.T
    with dask.annotate(priority=4):
        z = y @ B[:11].rechunk((4, 3))
    graph = finished(z)
    found = sorted(
        layer.annotations["priority"] for layer in graph.layers.values() if layer.annotations
    )
    assert found == [3, 4]
    np.testing.assert_array_equal(values(z, graph), z.compute())


def test_renamed_blocks_reach_annotated_gangs() -> None:
    y = A @ A.T
    with dask.annotate(priority=4):
        z = y @ B[:11].rechunk((4, 3))
    part = z[:8] + 1
    keys = set(flatten(part.__dask_keys__()))
    graph = emitted(part, keys=list(keys))
    backwards = dict(reversed(graph.layers.items()))
    for order in (graph, HighLevelGraph(backwards, graph.dependencies)):
        tasks = finish(optimize(graph, keys), keys, order)
        assert y.name not in {key[0] for key in tasks if isinstance(key, tuple)}
        np.testing.assert_array_equal(values(part, tasks), z.compute()[:8] + 1)


def test_without_annotations_there_are_no_layers() -> None:
    assert isinstance(finished((A @ B).sum()), dict)
