"""What is sent to the scheduler: graphs in comparable form, or Dask's own expressions."""

from __future__ import annotations

import pickle
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.base import collections_to_expr
from dask.delayed import delayed
from distributed.protocol.serialize import deserialize, serialize, to_serialize

import dask_dgpu as dgpu
from dask_dgpu.optimizer import GraphOptimizer
from graph_opt.dask_graph import sent as module
from graph_opt.dask_graph.sent import SentGraph
from tests.support.calls import Counting

X = da.from_array(np.arange(36.0).reshape(6, 6), chunks=3)


def sent(*collections: Any, compute: bool = False) -> Any:
    """Return the expression that the scheduler gets."""
    expr = collections_to_expr(collections)
    if compute:
        expr = expr.finalize_compute()
    return deserialize(*serialize(to_serialize(expr.optimize())))


def graphs(expr: Any) -> list[Any]:
    return [each.dsk for each in expr.operands]


def computed(expr: Any) -> Any:
    return dask.get(expr.__dask_graph__(), expr.__dask_keys__())


@pytest.mark.parametrize("compute", [True, False])
@pytest.mark.parametrize("several", [True, False])
def test_array_graphs_are_sent_in_comparable_form(compute: bool, several: bool) -> None:
    arrays = [X @ X.T, X.sum()] if several else [X @ X.T]
    expected = computed(sent(*arrays, compute=compute))
    with dgpu.enable(local_ranks=2):
        found = sent(*arrays, compute=compute)
        (graph,) = graphs(found)
        assert isinstance(graph, SentGraph)
        assert "layers" not in vars(graph)
        assert isinstance(found.operands[0].low_level_optimizer, GraphOptimizer)
        got = computed(found)
    for block, other in zip(_leaves(got), _leaves(expected), strict=True):
        np.testing.assert_allclose(block, other)


def _leaves(value: Any) -> list[Any]:
    nested = isinstance(value, (list, tuple))
    return [leaf for each in value for leaf in _leaves(each)] if nested else [value]


def test_the_keys_are_those_of_dask() -> None:
    arrays = X + 1, X.sum()
    expected = sent(*arrays).__dask_keys__()
    with dgpu.enable():
        assert sent(*arrays).__dask_keys__() == expected


def test_each_optimizer_has_its_own_graph() -> None:
    other = delayed(sum)([1, 2])
    with dgpu.enable():
        found = sent(X + 1, other)
        assert [isinstance(graph, SentGraph) for graph in graphs(found)] == [True, False]
        assert _leaves(computed(found)[1]) == [3]


def test_what_cannot_be_compared_is_sent_as_by_dask(monkeypatch: pytest.MonkeyPatch) -> None:
    class Local:
        pass

    cases = [X.map_blocks(lambda block, _: block, Local, dtype=float), X + 1]
    monkeypatch.setattr(module, "MOST_TASKS", 2)
    with dgpu.enable():
        for z in cases:
            found = sent(z)
            assert not isinstance(graphs(found)[0], SentGraph)
            np.testing.assert_array_equal(computed(found)[0][0][0], np.asarray(z.blocks[0, 0]))


def test_what_cannot_be_pickled_has_the_error_of_dask() -> None:
    z = X.map_blocks(lambda block, _: block, (each for each in "ab"), dtype=float)
    errors = []
    for context in (dgpu.enable(), dask.config.set({})):
        with context, pytest.raises(TypeError) as error:
            sent(z)
        errors.append(str(error.value))
    assert errors[0] == errors[1]


def test_nothing_changes_without_the_optimizer() -> None:
    with dgpu.enable():
        with dask.config.set(array_optimize=None):
            assert not isinstance(graphs(sent(X + 1))[0], SentGraph)
        assert not isinstance(pickle.loads(pickle.dumps((X + 1).__dask_graph__())), SentGraph)
    assert not isinstance(graphs(sent(X + 1))[0], SentGraph)


def test_functions_of_a_notebook_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Counting(SentGraph.of)
    monkeypatch.setattr(SentGraph, "of", made)
    space: dict[str, Any] = {"__name__": "__main__"}
    exec("def double(block):\n    return 2 * block", space)
    z = X.map_blocks(space["double"])
    with dgpu.enable():
        found = sent(z)
        assert isinstance(graphs(found)[0], SentGraph)
        np.testing.assert_array_equal(computed(found)[0][0][0], 2 * np.asarray(X.blocks[0, 0]))
    assert made.calls == 1
