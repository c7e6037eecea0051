"""Culling: what is left, and how many keys each layer is asked to look at."""

from __future__ import annotations

from typing import Any

import dask.array as da
import pytest
from dask.blockwise import Blockwise

from graph_opt.dask_graph.parse import cull
from tests.graph_opt.graphs import keys_of

BLOCKS, STEPS = 16, 20


def test_a_layer_looks_at_no_key_but_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a loop of n steps would take n * n."""
    asked: list[set[Any]] = []
    culls = Blockwise.cull

    def noted(self: Blockwise, keys: set[Any], known: Any) -> Any:
        asked.append(keys)
        return culls(self, keys, known)

    monkeypatch.setattr(Blockwise, "cull", noted)
    x = da.ones(BLOCKS, chunks=1)
    for _ in range(STEPS):
        x = x + 1
    culled = cull(x.__dask_graph__(), keys_of(x))
    assert [len(keys) for keys in asked] == [BLOCKS] * (STEPS + 1)
    assert len(culled.graph.layers) == STEPS + 1


def test_what_nobody_needs_is_left_out() -> None:
    x = da.ones(BLOCKS, chunks=1)
    y = x + 1
    z = da.concatenate([y[:4], x])
    wanted = {(z.name, 0), (z.name, 3), (z.name, 4)}
    culled = cull(z.__dask_graph__(), wanted)
    assert culled.needs[y.name] == {(y.name, at): {(x.name, at)} for at in (0, 3)}
    assert culled.needs[x.name] == {(x.name, at): set() for at in (0, 3)}
    assert culled.reads[y.name] == {(x.name, 0), (x.name, 3)}
    assert y.name not in cull(z.__dask_graph__(), {(z.name, 4)}).graph.layers


def test_blocks_that_a_layer_makes_and_does_not_list() -> None:
    """Of an axis of chunks (0, 1), which Dask takes for one to broadcast."""
    x = da.ones((1, 2), chunks=((0, 1), (1, 1)))
    y = x + da.ones((1, 1), chunks=1)
    graph, wanted = y.__dask_graph__(), {(y.name, 1, 0)}
    assert wanted.isdisjoint(graph.layers[y.name].get_output_keys())
    assert set(cull(graph, wanted).graph.layers[y.name]) == wanted


def test_as_many_unlisted_blocks_as_are_listed() -> None:
    x = da.ones((1, 2), chunks=((0, 1), (1, 1)))
    y = x + da.ones((1, 1), chunks=1)
    graph, wanted = y.__dask_graph__(), {(y.name, 1, 0), (y.name, 1, 1)}
    culled = cull(graph, wanted).graph
    assert set(culled.layers[y.name]) == wanted
    assert set(cull(culled, wanted).graph.layers[y.name]) == wanted
