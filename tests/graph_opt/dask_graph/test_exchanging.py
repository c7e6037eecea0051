"""Blockwise layers of CuPy blocks call quicker functions."""

from __future__ import annotations

from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from dask.highlevelgraph import HighLevelGraph

from graph_opt.dask_graph.reader import with_functions
from graph_opt.model.layout import CUPY

X = da.from_array(np.arange(24.0).reshape(8, 3), chunks=(4, 3))
CALLS: list[Any] = []


def counted(x: Any, axis: int, dtype: Any = None) -> Any:
    CALLS.append((axis, dtype))
    return np.cumsum(x, axis=axis, dtype=dtype)


def on_gpu(array: da.Array) -> HighLevelGraph:
    """Return the graph as if blocks were CuPy's."""
    graph: HighLevelGraph = array.__dask_graph__()
    for layer in graph.layers.values():
        layer.collection_annotations = (layer.collection_annotations or {}) | {"chunk_type": CUPY}
    return graph


def computed(graph: HighLevelGraph, array: da.Array) -> Any:
    return da.Array(graph, array.name, array.chunks, meta=array._meta).compute(scheduler="sync")


def test_another_function_gets_the_same_arguments() -> None:
    y = (X + 1).cumsum(axis=0, dtype="float32")
    wanted = y.compute(scheduler="sync")
    graph = on_gpu(y)
    changed = with_functions(graph, {np.cumsum: counted})
    CALLS.clear()
    np.testing.assert_array_equal(computed(changed, y), wanted)
    assert [(0, np.dtype("float32"))] * 2 == CALLS
    assert changed.layers.keys() == graph.layers.keys()
    assert changed.dependencies == graph.dependencies
    assert sum(changed.layers[name] is not graph.layers[name] for name in graph.layers) == 1
    CALLS.clear()
    np.testing.assert_array_equal(computed(graph, y), wanted)
    assert not CALLS  # the graph that was given is as before


def test_all_else_stays() -> None:
    functions = {np.cumsum: counted, np.cumprod: counted}
    graph: HighLevelGraph = X.cumsum(axis=0).__dask_graph__()
    assert with_functions(graph, functions) is graph  # blocks of NumPy
    graph = on_gpu(X.map_blocks(partial(np.sort, axis=0)) + X.T.dot(X)[:1])
    assert with_functions(graph, functions) is graph
