"""Graphs with a known structure: optimized once, right for all."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from hypothesis import given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from dask_dgpu.optimizer import GraphOptimizer, structures
from dask_dgpu.planner.present import NOTHING, Present
from graph_opt.dask_graph.internals import List, Task, TaskRef
from graph_opt.dask_graph.sent import SentGraph
from graph_opt.model.names import is_gang
from tests.graph_opt.dask_graph.test_sent import received
from tests.graph_opt.dask_graph.test_texts import PROGRAMS, held
from tests.support.profiles import examples
from tests.support.programs import launches_of

RNG = np.random.default_rng(17)
A, B = RNG.random((9, 9)), RNG.random((9, 9))


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        yield


def optimizer() -> GraphOptimizer:
    found = dask.config.get("array_optimize")
    assert isinstance(found, GraphOptimizer)
    return found


class Kept:
    """What a scheduler keeps."""

    def __init__(self) -> None:
        self.graphs: dict[Any, structures.Kept] = {}

    def optimized(self, *arrays: da.Array, present: Present = NOTHING) -> Any:
        graph = HighLevelGraph.merge(*(z.__dask_graph__() for z in arrays))
        keys = {key for z in arrays for key in flatten(z.__dask_keys__())}
        graph = received(SentGraph.of(graph, keys))
        return structures.optimized(optimizer(), graph, keys, present, self.graphs)

    def compute(self, z: da.Array, *sources: da.Array) -> Any:
        """Compute an array, on the blocks of :func:`held` ones."""
        finalize, facts = z.__dask_postcompute__()
        blocks = {key: block for x in sources for key, block in x.given.items()}
        tasks = {**self.optimized(z), **blocks}
        return finalize(dask.threaded.get(tasks, z.__dask_keys__()), *facts)


def lazy(values: Any) -> da.Array:
    return da.from_array(values, chunks=4)


@given(st.sampled_from(sorted(PROGRAMS)), st.sampled_from(sorted(PROGRAMS)), st.integers(0, 99))
@examples(20)
def test_known_structures_have_results_of_their_own_data(first, second, seed):
    def make(x: da.Array) -> da.Array:
        y = PROGRAMS[first](x)
        return PROGRAMS[second](y if y.shape == x.shape else x + y.sum())

    kept = Kept()
    for each in range(3):
        values = np.random.default_rng(seed + each).random((8, 8))
        with dask.config.set(array_optimize=da.optimize):
            expected = make(lazy(values)).compute(scheduler="sync")
        x = held(values, 4)
        np.testing.assert_allclose(kept.compute(make(x), x), expected, rtol=1e-12, atol=1e-12)
    assert len(kept.graphs) == 1


@pytest.fixture
def calls(monkeypatch):
    """One entry for each graph that is rewritten."""
    calls: list[int] = []
    rewrite = GraphOptimizer.rewrite

    def counting(self: GraphOptimizer, *args: Any) -> Any:
        calls.append(1)
        return rewrite(self, *args)

    monkeypatch.setattr(GraphOptimizer, "rewrite", counting)
    return calls


def test_a_structure_is_optimized_once(calls):
    kept = Kept()
    for values in (A, B, A + 1):
        kept.optimized(held(values, 4) @ held(values + 1, 4).T)
    assert len(calls) == 1
    kept.optimized(held(A, 4) @ held(A + 1, 4))
    assert len(calls) == 2


NUMBERS: dict[str, Callable[[Any, Any], Any]] = {
    "scale": lambda x, c: x * c + x.T,
    "step": lambda x, c: x - np.float64(c) * (x @ x.T),
    "single": lambda x, c: (x + np.float32(c)) @ x,
    "power": lambda x, c: abs(x) ** c + x.sum(axis=0),
    "twice": lambda x, c: (x * c - c) @ (c / (x * x + 2)),
    "where": lambda x, c: da.where(x > c, x, c) @ x,
    "clip": lambda x, c: da.clip(x, c, c + 1) @ x,
    "compare": lambda x, c: da.isclose(x, c, atol=0.3) @ x,
    "function": lambda x, c: x.map_blocks(lambda b, c: b * c, c, dtype=float) @ x,
    "mean": lambda x, c: (x * c).mean(axis=0) + x.std(axis=0) * c + x,
    "norm": lambda x, c: x / (da.linalg.norm(x) + c),
}


@given(st.sampled_from(sorted(NUMBERS)), st.sampled_from(sorted(NUMBERS)), st.integers(0, 99))
@examples(20)
def test_other_numbers_are_a_known_structure_with_other_results(first, second, seed):
    kept = Kept()
    rng = np.random.default_rng(seed)
    for _ in range(2):
        values, c, d = rng.random((8, 8)), rng.random() + 1e-9, -rng.random()

        def make(x: da.Array, c: float = c, d: float = d) -> da.Array:
            return NUMBERS[second](NUMBERS[first](x, c) * d, c)

        with dask.config.set(array_optimize=da.optimize):
            expected = make(lazy(values)).compute(scheduler="sync")
        x = held(values, 4)
        np.testing.assert_allclose(kept.compute(make(x), x), expected, rtol=1e-11, atol=1e-11)
    assert len(kept.graphs) == 1


def test_a_new_number_in_each_step_is_optimized_once(calls):
    kept, values = Kept(), A
    for at in range(1, 21):
        x, step = held(values, 4), 0.1 / (at + math.pi)
        found = kept.compute(x - step * (x.T @ x), x)
        values = values - step * (values.T @ values)
        np.testing.assert_allclose(found, values, rtol=1e-12)
    assert len(calls) == 1


def test_a_new_array_in_each_step_is_optimized_once(calls):
    kept, weights = Kept(), B[0]
    for _ in range(5):
        x = held(A, 4)
        found = kept.compute(x.T @ (x @ weights), x)
        weights = A.T @ (A @ weights)
        np.testing.assert_allclose(found, weights, rtol=1e-12)
        weights = weights / np.linalg.norm(weights)
    assert len(calls) == 1


DATA: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "alone": lambda x: (x @ x.T,),
    "with other tasks": lambda x: ((x @ x.T).sum(axis=0) + x,),
    "with another reader": lambda x: (x @ x.T, x[:4] + 1),
    "requested too": lambda x: (x @ x.T, x),
}


@pytest.mark.parametrize("make", DATA.values(), ids=DATA)
@pytest.mark.parametrize("order", [(A, B), (B, A)], ids=["A first", "B first"])
def test_tasks_that_hold_data_hold_that_of_their_graph(calls, make, order):
    kept = Kept()
    for values in (*order, A + B, order[0]):
        arrays = make(lazy(values))
        tasks = kept.optimized(*arrays)
        found = dask.threaded.get(tasks, [z.__dask_keys__() for z in arrays])
        for z, blocks, wanted in zip(arrays, found, make(values), strict=True):
            finalize, facts = z.__dask_postcompute__()
            np.testing.assert_allclose(finalize(blocks, *facts), wanted, rtol=1e-12)
        (graph,) = kept.graphs.values()
        texts = [graph.text, *map(pickle.dumps, graph.programs.values())]
        for block in (values[:4, :4], values[8:, 8:]):
            assert not any(block.tobytes() in text for text in texts)
    assert len(calls) == 1


def test_arrays_that_tasks_write_are_those_of_the_graph():
    kept, targets = Kept(), [np.zeros((9, 9)) for _ in range(2)]
    for values, target in zip((A, B), targets, strict=True):
        x = held(values, 4)
        kept.compute(da.store(x + x.T, target, lock=False, compute=False), x)
        np.testing.assert_array_equal(target, values + values.T)
    assert len(kept.graphs) == 1


def test_functions_that_hold_a_token_see_their_own():
    """A user may pass the name of an array to a function."""

    def tell(block: Any, name: str) -> Any:
        return block + int(name[-8:], 16)

    kept = Kept()
    for values in (A, B, A):
        x = held(values, 4)
        z = x.map_blocks(tell, x.name, dtype=float) @ x
        found = kept.compute(z, x)
        np.testing.assert_allclose(found, (values + int(x.name[-8:], 16)) @ values, rtol=1e-12)
    assert len(kept.graphs) == 1


def test_fallback_with_another_number():
    kept = Kept()
    with dgpu.enable(local_ranks=3, when="always"):
        for c in (A[0, 0], A[0, 1]):
            x = held(A, 4)
            z = (x.map_blocks(lambda block: block[::2]) @ x) * float(c)
            with pytest.warns(UserWarning, match="left a gang to Dask"):
                got = kept.compute(z, x)
            rows = np.concatenate([A[:4:2], A[4:8:2], A[8:]])
            np.testing.assert_allclose(got, rows @ A * c)
    assert len(kept.graphs) == 1


def test_names_are_those_of_the_graph_and_no_two_alike():
    kept = Kept()
    arrays = [held(values, 4) @ held(values + 1, 4) + 1 for values in (A, B)]
    first, second = map(kept.optimized, arrays)
    assert len(kept.graphs) == 1
    for z, tasks in zip(arrays, (first, second), strict=True):
        assert set(flatten(z.__dask_keys__())) <= tasks.keys()
        assert sum(map(is_gang, tasks)) == 1
    assert not first.keys() & second.keys()
    assert kept.optimized(arrays[0]).keys() == first.keys()  # a second persist finds the results


def test_a_gang_has_the_same_name_whatever_reads_its_arrays():
    """The last layer of ``compute`` has another name each time."""
    kept, x = Kept(), held(A, 4)
    z = x @ x
    found = []
    for digit in "ab":
        last = f"finalize-{digit * 32}"
        task = Task(last, list, List(*map(TaskRef, flatten(z.__dask_keys__()))))
        layers = {**z.dask.layers, last: MaterializedLayer({last: task})}
        graph = HighLevelGraph(layers, {**z.dask.dependencies, last: {z.name}})
        graph = SentGraph.of(graph, {last})
        tasks = structures.optimized(optimizer(), graph, {last}, NOTHING, kept.graphs)
        found.append(set(filter(is_gang, tasks)))
    assert len(kept.graphs) == len(found[0]) == 1
    assert found[0] == found[1] == set(filter(is_gang, kept.optimized(z)))


def test_launches_have_the_names_of_their_arrays():
    kept = Kept()
    for values in (A, B):
        z = held(values, 4) @ held(values, 4)
        (launch,) = launches_of(kept.optimized(z))
        assert launch.title == dgpu.explain(z).rewritten[0][0].label
        assert [name for name, _ in launch.outputs] == [z.name]
        assert launch.names[0].startswith("held-")


def test_fallback_of_a_known_structure():
    kept = Kept()
    with dgpu.enable(local_ranks=3, when="always"):
        for values in (A, B):
            x = held(values, 4)
            z = x.map_blocks(lambda block: block[::2]) @ x  # Dask declares all rows
            with pytest.warns(UserWarning, match="left a gang to Dask"):
                got = kept.compute(z, x)
            rows = np.concatenate([values[:4:2], values[4:8:2], values[8:]])
            np.testing.assert_allclose(got, rows @ values)
    assert len(kept.graphs) == 1


def on(workers: dict[str, Callable[[tuple[int, ...]], int]]) -> Present:
    """Return where blocks are: a function of their place, by the start of the array's name."""

    def places(keys: Any) -> dict[Any, int]:
        return {
            key: place(key[1:])
            for key in keys
            for start, place in workers.items()
            if key[0].startswith(start)
        }

    return Present(lambda keys: 0, places)


def test_places_count_but_workers_are_alike():
    kept = Kept()
    for shift in range(3):
        z = held(A, 4) + held(B, 4)
        kept.optimized(z, present=on({"held": lambda at, shift=shift: (at[0] + shift) % 3}))
    assert len(kept.graphs) == 1
    kept.optimized(z, present=on({"held": lambda at: 0}))
    assert len(kept.graphs) == 2


def test_places_are_asked_by_real_names():
    asked: set[Any] = set()

    def places(keys: Any) -> dict[Any, int]:
        asked.update(keys)
        return {}

    x = held(A, 4)
    Kept().optimized(x @ x, present=Present(lambda keys: asked.update(keys) or 0, places))
    assert asked == set(flatten(x.__dask_keys__()))


def test_places_of_other_blocks_than_inputs_are_not_asked():
    """They are not in the key of a kept graph, so nothing in it may depend on them."""
    asked: set[str] = set()

    def places(keys: Any) -> dict[Any, int]:
        asked.update(name for name, *_ in keys)
        return {}

    x = held(A, 4)
    left_to_dask = da.ma.filled(da.ma.masked_greater(x, 2), 0)
    z = left_to_dask @ left_to_dask
    assert dgpu.explain(z).regions
    Kept().optimized(z, present=Present(lambda keys: 0, places))
    assert asked
    assert left_to_dask.name not in asked


def test_settings_count():
    kept, z = Kept(), held(A, 4) @ held(B, 4)
    kept.optimized(z)
    with dgpu.enable(local_ranks=2, when="always", on_error="raise"):
        kept.optimized(z)
    with dask.config.set({"optimization.fuse.ave-width": 3}):
        kept.optimized(z)
    assert len(kept.graphs) == 3


def test_graphs_with_layers_are_not_kept():
    """Annotations need layers, so each such graph is optimized."""
    kept = Kept()
    with dask.annotate(priority=3):
        z = held(A, 4) @ held(B, 4)
    assert isinstance(kept.optimized(z), HighLevelGraph)
    assert [each.text for each in kept.graphs.values()] == [b""]
    assert isinstance(kept.optimized(z), HighLevelGraph)
