"""Graphs on their way to the scheduler: equal after it, and not opened before anyone looks."""

from __future__ import annotations

import pickle
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph
from hypothesis import given
from hypothesis import strategies as st

from graph_opt.dask_graph.plain import Plain
from graph_opt.dask_graph.sent import SentGraph
from tests.graph_opt.dask_graph.test_texts import PROGRAMS
from tests.support.profiles import examples

X = da.from_array(np.arange(49.0).reshape(7, 7), chunks=3)
STEP = 0.123456789
"""Long enough to be a parameter of the form."""


def sent(*arrays: da.Array) -> SentGraph:
    """Return the graph of some arrays as the scheduler gets it."""
    graph = HighLevelGraph.merge(*(z.__dask_graph__() for z in arrays))
    keys = {key for z in arrays for key in flatten(z.__dask_keys__())}
    return received(SentGraph.of(graph, keys))


def received(graph: SentGraph) -> SentGraph:
    """Return a graph as Dask's messages deliver it: arrays within one process are not copied."""
    buffers: list[pickle.PickleBuffer] = []
    text = pickle.dumps(graph, protocol=5, buffer_callback=buffers.append)
    found: SentGraph = pickle.loads(text, buffers=buffers)
    return found


def is_opened(graph: SentGraph) -> bool:
    return "layers" in vars(graph)


@given(st.sampled_from(sorted(PROGRAMS)), st.sampled_from(sorted(PROGRAMS)))
@examples(20)
def test_a_sent_graph_has_the_layers_and_results_of_the_original(first, second):
    y = PROGRAMS[first](X)
    z = PROGRAMS[second](y if y.shape == X.shape else X + y.sum()) * STEP
    graph, original = sent(z), z.__dask_graph__()
    assert not is_opened(graph)
    assert list(graph.layers) == list(original.layers)
    assert is_opened(graph)
    assert graph.dependencies == original.dependencies
    keys = list(flatten(z.__dask_keys__()))
    for got, expected in zip(dask.get(graph, keys), dask.get(original, keys), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    "look",
    [
        lambda graph: graph.layers,
        lambda graph: graph.dependencies,
        list,
        dict,
        lambda graph: graph.copy(),
        lambda graph: HighLevelGraph.merge(graph),
        lambda graph: graph.cull([(X.name, 0, 0)]),
    ],
)
def test_whoever_looks_at_a_sent_graph_opens_it(look):
    graph = sent(X)
    assert not is_opened(graph)
    assert len(look(graph)) == len(look(X.__dask_graph__()))
    assert is_opened(graph)


def test_unknown_attributes_are_errors_and_do_not_open_a_graph():
    graph = sent(X)
    with pytest.raises(AttributeError, match="other"):
        _ = graph.other
    assert not is_opened(graph)


def test_a_sent_graph_is_sent_again_without_its_layers():
    graph = sent(X + 1)
    size = len(pickle.dumps(graph))
    assert graph.layers
    assert len(pickle.dumps(graph)) == size


def test_graphs_of_the_same_structure_differ_in_tokens_alone():
    values = np.random.default_rng(1).random((2, 7, 7))
    graphs = [sent((da.from_array(each, chunks=3) @ X) * each[0, 0]) for each in values]
    assert len({graph.text for graph in graphs}) == 1
    assert graphs[0].tokens != graphs[1].tokens
    for graph, each in zip(graphs, values, strict=True):
        assert any(array is not each for array in graph.arrays)


def test_blocks_travel_beside_the_pickle():
    big = np.zeros((1 << 10, 1 << 10))
    buffers: list[Any] = []
    graph = HighLevelGraph.merge(da.from_array(big, chunks=(512, -1)).__dask_graph__())
    text = pickle.dumps(SentGraph.of(graph, []), protocol=5, buffer_callback=buffers.append)
    assert len(text) < 10_000
    found = pickle.loads(text, buffers=buffers)
    assert sum(array.nbytes for array in found.arrays) == big.nbytes


def test_dasks_own_tasks_are_looked_up_when_they_are_needed():
    z = X + 1
    graph = sent(z)
    plain = Plain(graph, (), tuple(flatten(z.__dask_keys__())))
    assert not is_opened(graph)
    copied = pickle.loads(pickle.dumps(plain))
    assert is_opened(graph)
    for each in (plain, copied):
        np.testing.assert_array_equal(each.blocks({})[z.name, 1, 2], np.asarray(z.blocks[1, 2]))
