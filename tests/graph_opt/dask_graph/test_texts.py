"""Graphs with the same structure have equal bytes, and get their names back."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from itertools import chain, zip_longest
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.core import flatten
from dask.highlevelgraph import MaterializedLayer
from hypothesis import given
from hypothesis import strategies as st

from graph_opt.dask_graph import sent
from graph_opt.dask_graph.internals import Alias, DataNode, TaskRef
from graph_opt.dask_graph.sent import IncomparableError, SentGraph, opened, pickled
from graph_opt.model.names import parted

RNG = np.random.default_rng(11)


def held(values: Any, chunks: Any = 3) -> da.Array:
    """Return an array whose graph has no blocks, as after ``persist``.

    Its attribute ``given`` has the blocks, by the keys that its graph reads.
    """
    x = da.from_array(values, chunks=chunks)
    name = f"held-{dask.base.tokenize(values)}"
    keys = {(name, *key[1:]): (f"given-{name}", *key[1:]) for key in flatten(x.__dask_keys__())}
    blocks = {key: Alias(key, TaskRef(given)) for key, given in keys.items()}
    graph = dask.highlevelgraph.HighLevelGraph({name: MaterializedLayer(blocks)}, {name: set()})
    array = da.Array(graph, name, x.chunks, dtype=x.dtype, meta=x._meta)
    array.given = {given: dask.get(x.dask, (x.name, *key[1:])) for key, given in keys.items()}
    return array


def form(*arrays: da.Array) -> SentGraph:
    graph = dask.highlevelgraph.HighLevelGraph.merge(*(z.__dask_graph__() for z in arrays))
    keys = {key for z in arrays for key in flatten(z.__dask_keys__())}
    return SentGraph.of(graph, keys)


def tokens(graph: SentGraph) -> list[bytes]:
    return graph.tokens.split()


def closure(factor: float) -> Callable[[Any], Any]:
    return lambda block: block * factor


PROGRAMS: dict[str, Callable[[da.Array], da.Array]] = {
    "map": lambda x: (x + 1) * 2,
    "product": lambda x: (x @ x.T).sum(axis=0),
    "slices": lambda x: x[1:] - x[:-1],
    "neighbours": lambda x: x.map_overlap(lambda b: b, depth=1),
    "loop": lambda x: sum((x * k).mean() for k in range(4)),
    "function": lambda x: x.map_blocks(closure(3)),
    "chunks": lambda x: x.rechunk(2).cumsum(axis=0),
    "norm": lambda x: x / da.linalg.norm(x),
    "qr": lambda x: da.linalg.qr(x.rechunk((3, -1)))[1],
}


@pytest.mark.parametrize("make", PROGRAMS.values(), ids=PROGRAMS)
def test_other_data_have_equal_bytes(make):
    first, second = (form(make(held(RNG.random((7, 5))))) for _ in range(2))
    assert first.text == second.text
    assert first.tokens != second.tokens
    assert len(first.tokens) == len(second.tokens)


X = held(np.arange(35.0).reshape(7, 5))
DIFFERENT: dict[str, Callable[[], tuple[da.Array, ...]]] = {
    "plain": lambda: (X + 1,),
    "constant": lambda: (X + 2,),
    "type": lambda: (X + np.float32(1),),
    "function": lambda: (X - 1,),
    "closure": lambda: (X.map_blocks(closure(3), dtype=float),),
    "other closure": lambda: (X.map_blocks(closure(4), dtype=float),),
    "keyword": lambda: (X.sum(axis=0),),
    "other keyword": lambda: (X.sum(axis=1),),
    "itself": lambda: (X + X,),
    "another": lambda: (X + held(np.ones((7, 5))),),
    "chunks": lambda: (held(np.ones((7, 5)), 4) + 1,),
    "shape": lambda: (held(np.ones((5, 7))) + 1,),
    "dtype": lambda: (held(np.ones((7, 5), int)) + 1,),
    "part": lambda: ((X + 1)[:3],),
    "array as a block": lambda: (X + np.ones(5),),
    "array as a block, other dtype": lambda: (X + np.ones(5, int),),
    "array as a literal": lambda: (X.map_blocks(np.add, np.ones(1), dtype=float),),
    "other array as a literal": lambda: (X.map_blocks(np.add, np.zeros(1), dtype=float),),
    "both": lambda: (X + 1, X + 2),
}


def test_different_graphs_have_different_bytes():
    found = {name: form(*make()).text for name, make in DIFFERENT.items()}
    assert len(set(found.values())) == len(DIFFERENT)


def test_arrays_as_blocks_have_equal_bytes_and_stay_where_they_are():
    found = [form(X @ weights) for weights in (np.ones(5), np.arange(5.0))]
    assert found[0].text == found[1].text
    graph, _ = found[1].open()
    known = dict(enumerate(found[1].arrays))
    restored = opened(found[1].restored(pickled(graph, known)), found[0].arrays)
    blocks = [block for layer in restored.layers.values() for block in layer.values()]
    assert any(block is array for block in blocks for array in found[0].arrays)


def block_and_literal(values, how):
    """Return an array whose blocks are an array that a function has too, and what it is."""
    name = "blocks-" + dask.base.tokenize(values)
    blocks = {(name, at): values for at in range(2)}
    if how == "a node":
        blocks = {key: DataNode(key, values) for key in blocks}
    z = da.Array(blocks, name, ((len(values),) * 2,), dtype=float)
    return z.map_blocks(np.multiply, values, dtype=float), np.tile(values * values, 2)


@pytest.mark.parametrize("how", ["an array", "a node"])
def test_arrays_that_are_blocks_and_literals_are_compared(how):
    made = [block_and_literal(np.full(3, value), how) for value in (1.0, 2.0, 2.0)]
    found = [form(z).text for z, _ in made]
    assert found[0] != found[1]
    assert found[1] == found[2]
    for z, wanted in made:
        again = form(z)
        np.testing.assert_array_equal(da.Array(again, z.name, z.chunks, float), wanted)


def test_requested_blocks_count():
    z = X + 1
    keys = list(flatten(z.__dask_keys__()))
    graph = z.__dask_graph__()
    assert SentGraph.of(graph, keys).text == SentGraph.of(graph, reversed(keys)).text
    assert SentGraph.of(graph, keys).text != SentGraph.of(graph, keys[:1]).text


def test_annotations_count():
    with dask.annotate(priority=3):
        z = X + 1
    assert form(z).text != form(X + 1).text


@given(st.lists(st.sampled_from(list(PROGRAMS)), min_size=1, max_size=3), st.integers(0, 99))
def test_restored_graph_is_the_original(names, seed):
    values = np.random.default_rng(seed).random((6, 6))
    x = da.from_array(values, chunks=3)
    for name in names:
        z = PROGRAMS[name](x)
        x = z if z.shape == x.shape else x + z.sum()
    graph, keys = x.__dask_graph__(), list(flatten(x.__dask_keys__()))
    found = SentGraph.of(graph, keys)
    text = found.restored(pickled(found.open()))
    again, restored_keys = opened(text, found.arrays)
    assert restored_keys == keys
    assert again.layers.keys() == graph.layers.keys()
    assert again.dependencies == graph.dependencies
    got = dask.get(again, keys)
    np.testing.assert_array_equal(np.array(got[0]), np.array(dask.get(graph, keys)[0]))


def test_new_tokens_depend_on_all_names():
    own = b"9" * 32
    new = pickle.dumps("passes-" + own.decode())
    x = held(np.ones((7, 5)))
    forms = form(X + 1), form(x + 1), form(X + 1)
    assert len({each.text for each in forms}) == 1
    names = [pickle.loads(each.restored(new)) for each in forms]
    assert names[0] == names[2] != names[1]
    assert parted(names[0].encode())[1][0] not in (*tokens(forms[0]), own)


def test_known_objects_are_not_copied():
    known = {"one": np.ones(1000), 2: (X + 1).__dask_graph__()}
    data = pickled([*known.values()], known)
    assert len(data) < 100
    assert all(a is b for a, b in zip(opened(data, known), known.values(), strict=True))


class Here:
    pass


def test_what_cannot_be_compared():
    class Local:
        pass

    assert form(X.map_blocks(lambda b, c: b, Here, dtype=float)).tokens
    with pytest.raises(IncomparableError, match="class that can be imported"):
        form(X.map_blocks(lambda b, c: b, Local, dtype=float))
    with pytest.raises(IncomparableError, match="without data"):
        form(X.map_blocks(np.add, np.ones((sent.MOST_BYTES // 40 + 1, 5)), dtype=float))
    with pytest.raises(KeyError):
        SentGraph.of(X.__dask_graph__(), [("other", 0, 0)])


def test_large_graphs_are_not_read(monkeypatch):
    monkeypatch.setattr(sent, "MOST_TASKS", 3)
    with pytest.raises(IncomparableError, match="small graph"):
        form(X + 1)


@given(text=st.lists(st.sampled_from([b"0", b"a", b"g", b"-", b"f" * 31, b"0" * 32])).map(b"".join))
def test_a_token_is_a_run_of_32_digits(text: bytes) -> None:
    runs = re.findall(rb"[0-9a-f]+", text)
    pieces, tokens = parted(text)
    assert tokens == [run for run in runs if len(run) == 32]
    assert b"".join(chain(*zip_longest(pieces, tokens, fillvalue=b""))) == text
