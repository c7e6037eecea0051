"""Graphs with gangs: which operations are one gang, how many tasks these are, and their names."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.core import flatten
from hypothesis import given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from graph_opt.model.piece import Region
from tests.support.calls import calls_of
from tests.support.profiles import examples

RNG = np.random.default_rng(5)
ALWAYS: dict[str, Any] = {"local_ranks": 2, "when": "always", "on_error": "raise"}


def integers(*shape: int, chunks: Any) -> da.Array:
    """Return an array whose products are exact."""
    return da.from_array(RNG.integers(-9, 10, shape).astype(float), chunks=chunks)


A, B = integers(11, 13, chunks=(4, 5)), integers(13, 7, chunks=(5, 3))
S, T = integers(12, 12, chunks=4), integers(12, 12, chunks=4)


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    with dgpu.enable(**ALWAYS):
        yield


def optimized(*arrays: da.Array) -> Any:
    """Return the graph that Dask computes for some arrays."""
    graph = dask.highlevelgraph.HighLevelGraph.merge(*(x.__dask_graph__() for x in arrays))
    return dask.config.get("array_optimize")(graph, [x.__dask_keys__() for x in arrays])


def names_in(*arrays: da.Array) -> set[str]:
    return {str(key[0]) for key in dict(optimized(*arrays))}


def regions(*arrays: da.Array) -> list[Region]:
    return [region for region, _ in dgpu.explain(*arrays).regions]


def only(*arrays: da.Array) -> Region:
    (region,) = regions(*arrays)
    return region


def same(*arrays: da.Array) -> None:
    """Compare values with those of plain Dask."""
    found = dask.compute(*arrays, scheduler="sync")
    with dask.config.set(array_optimize=da.optimize):
        wanted = dask.compute(*arrays, scheduler="sync")
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


@examples(30)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6))
def test_one_task_a_block_and_one(rows: int, inner: int, columns: int) -> None:
    a, b = da.zeros((2 * rows, 2 * inner), chunks=2), da.zeros((2 * inner, 2 * columns), chunks=2)
    with dgpu.enable(**ALWAYS, regions=False):
        read = {*flatten(a.__dask_keys__()), *flatten(b.__dask_keys__())}
        assert only(a @ b).tasks == len(read) + rows * columns + 1  # equal zeros are one array


@pytest.mark.parametrize(
    ("index", "rows", "columns"),
    [
        (np.s_[:4, :3], 1, 1),
        (np.s_[4:9], 2, 3),
        (np.s_[:, 6], 3, 1),
        (np.s_[10, 0], 1, 1),
        (np.s_[::10, ::6], 2, 2),
    ],
)
def test_only_blocks_that_are_read_are_computed(index: Any, rows: int, columns: int) -> None:
    z = A @ B
    with dgpu.enable(**ALWAYS, regions=False):
        tasks = 3 * rows + 3 * columns + rows * columns + 1
        assert only(z[index]).tasks == tasks
        same(z[index])


def test_products_of_products_are_culled_through() -> None:
    x = da.ones((576, 576), chunks=64).persist(scheduler="sync")
    with dgpu.enable(**ALWAYS, regions=False):
        assert only((x @ x)[:64, :64]).tasks == 9 + 8 + 1 + 1  # one block is in both operands
    first = only(((A @ A.T) @ A)[:4, :5])
    assert {index[0] for _, blocks in first.wanted for index in blocks} == {0}


def test_blocks_keep_their_names_unless_only_some_are_computed() -> None:
    z = A @ B
    with dgpu.enable(**ALWAYS, regions=False):
        assert z.name in names_in(z + 1)
        parts = [
            {name for name in names_in(part) if name.startswith(z.name)}
            for part in (z[:3] + 1, z[9:] + 1)
        ]
    assert all(len(each) == 1 for each in parts)
    assert len({z.name}.union(*parts)) == 3
    keys = [(z.name, 0, 0)]
    tasks = dask.config.get("array_optimize")(z.dask, keys)
    assert keys[0] in dict(tasks)
    assert (z.name, 0, 1) not in dict(tasks)


def test_names_of_gangs_depend_on_what_they_compute() -> None:
    z = (A @ B) * 2
    parts = z, (A @ B) * 3, z[:4], A @ (B + 1)
    assert only(z).token == only((A @ B) * 2).token
    assert len({only(each).token for each in parts}) == len(parts)
    for seed in range(10):  # sets of other names come in other orders once they have travelled
        products = [da.from_array(RNG.random((12, 12)), 4) @ S for _ in range(4)]
        w = da.add(products[0] * products[1], products[2] * products[3]) @ S + seed
        moved = da.Array(pickle.loads(pickle.dumps(w.dask)), w.name, w.chunks, meta=w)
        assert only(w).token == only(moved).token


ANNOTATED: dict[str, Callable[[], da.Array]] = {
    "product": lambda: A @ B,
    "rechunk": lambda: A.rechunk((3, 13)),
    "overlap": lambda: da.overlap.overlap(A, 1, "reflect"),
}


@pytest.mark.parametrize("name", ANNOTATED)
def test_gangs_are_annotated_as_their_layers(name: str) -> None:
    with dask.annotate(priority=3):
        z = ANNOTATED[name]()
    layers = optimized(z + 1).layers
    found = {name: each.annotations for name, each in layers.items() if each.annotations}
    assert [*found.values()] == [{"priority": 3}]
    assert "dgpu-gang" in " ".join(found)
    same(z + 1)


def test_each_gang_has_its_own_annotations() -> None:
    with dask.annotate(priority=3):
        y = A @ A.T
    with dask.annotate(priority=4):
        z = y @ B[:11].rechunk((4, 3))
    found = [layer.annotations for layer in optimized(z).layers.values() if layer.annotations]
    assert sorted(each["priority"] for each in found) == [3, 4]
    same(z[:8] + 1)
    assert y.name not in names_in(z[:8] + 1)


UNTOUCHED: dict[str, Callable[[], da.Array]] = {
    "product": lambda: (A + 1) @ B + 1,
    "overlap": lambda: (A + 1).map_overlap(np.sin, depth=2, boundary="nearest") + 1,
    "rechunk": lambda: (A + 1).rechunk((11, 2)) + 1,
    "no gang": lambda: A + 1,
}


@pytest.mark.parametrize("name", UNTOUCHED)
def test_the_given_graph_stays_as_it_is(name: str) -> None:
    z = UNTOUCHED[name]()
    before = dict(z.dask.layers)
    needed = {name: set(others) for name, others in z.dask.dependencies.items()}
    same(z)
    assert z.dask.layers == before
    assert z.dask.dependencies == needed


def test_tasks_of_the_old_form() -> None:
    """Their dependencies are found by asking all layers for their keys."""
    graph = {("old", i, j): (np.full, (4, 4), float(i + j)) for i in range(2) for j in range(2)}
    x = da.Array(graph, "old", ((4, 4), (4, 4)), dtype=float)
    same((x @ x)[:4] + 1)


def test_blocks_that_a_layer_makes_and_does_not_list() -> None:
    """Of an axis of chunks (0, 1), which Dask takes for one to broadcast."""
    x = da.from_array(np.ones((1, 2)), chunks=((0, 1), (1, 1)))
    y = (x + da.ones((1, 1), chunks=1)) * 2
    np.testing.assert_array_equal(y.compute(scheduler="sync"), [[4, 4]])


def test_writers_are_left_to_dask(tmp_path: Any) -> None:
    """A layer that is requested and declares no array may do anything."""
    da.to_npy_stack(str(tmp_path), S @ T, axis=0)
    np.testing.assert_array_equal(da.from_npy_stack(str(tmp_path)).compute(), (S @ T).compute())


def test_the_work_of_optimizing_grows_with_the_layers() -> None:
    """Twice the steps of a loop are twice the calls: no layer looks at the keys of others."""

    def calls(steps: int) -> int:
        x = S
        for _ in range(steps):
            x = (x @ T) / 2 + 1
        return calls_of(lambda: optimized(x))

    assert calls(40) < 2.3 * calls(20)


def words(region: Region) -> list[str]:
    return [name.rpartition("-")[0] for name in region.nodes]


def masked(x: da.Array) -> da.Array:
    """Return an array by way of masked blocks, which gangs do not have."""
    return da.ma.filled(da.ma.masked_less(x, -1000), 0)


def test_blocks_are_read_once_and_only_those_that_are_needed() -> None:
    region = only((S @ S + S)[:4])
    ((node, blocks),) = region.inputs
    assert node.name == S.name
    assert len(blocks) == S.npartitions
    assert {index[0] for _, some in region.wanted for index in some} == {0}


def test_no_path_leads_out_of_a_gang_and_back_in() -> None:
    y = S @ T
    z = (y + masked(y)) @ y
    first, *_, last = regions(z)
    assert y.name in first.nodes
    assert z.name in last.nodes
    assert z.name not in first.nodes
    same(z, y)


def test_what_reads_nothing_is_computed_beside_its_reader() -> None:
    z = (masked(S @ T) * (da.ones((12, 12), chunks=4) * 3)) @ S
    first, second = regions(z)
    assert not any("ones" in word for word in words(first))
    assert len(second.inputs) == 2  # the masked array and S
    same(z)


@pytest.mark.parametrize(
    ("make", "is_gang"),
    [
        (lambda: S + T, False),
        (lambda: (S + 1).map_blocks(np.sin), False),
        (lambda: S + S.T, True),
        (lambda: S + T.T, True),
        (lambda: S[4:] - T[:8], False),
        (lambda: da.concatenate([S, T]), False),
        (lambda: S.cumsum(axis=0), True),
        (lambda: S.max(axis=1), True),
        (lambda: S - S.max(axis=1)[:, None], True),
        (lambda: da.ma.masked_greater(S, 1), False),
        (lambda: S.astype(object) + 1, False),
        (lambda: S[S[:, 0] > 0].sum(), False),
        (lambda: da.argtopk(S, 2)[:1], False),
    ],
)
def test_which_blocks_meet(make: Callable[[], da.Array], is_gang: bool) -> None:
    z = make()
    assert len(regions(z)) == is_gang
    if z.dtype != object:
        same(z)


def test_streams_of_blocks() -> None:
    """What is reduced before a collective is left to Dask, unless it exists or is needed whole."""
    x = da.random.default_rng(1).random((64, 12), chunks=(4, 12))
    reduced = (x + 1).mean(axis=0)[None] @ T
    assert not {"random", "mean_chunk"} & {*words(only(reduced))}
    y = x - x.mean(axis=0)
    assert {"random", "mean_chunk", "sub"} <= {*words(only(y.T @ y))}
    stored = x.persist(scheduler="sync")
    assert any("mean_chunk" in words(each) for each in regions((stored + 1).mean(axis=0)[None] @ T))
    same(reduced, y.T @ y)


@pytest.mark.parametrize("boundary", ["reflect", "periodic", "nearest", 2.5, "none"])
def test_overlaps_that_somebody_else_reads_stay(boundary: Any) -> None:
    ghosts = da.overlap.overlap(S, 1, boundary)
    trimmed = da.overlap.trim_internal(ghosts.map_blocks(np.sin), {0: 1, 1: 1}, boundary)
    same(trimmed, ghosts)


def test_several_passes_of_a_rechunk_are_one_operation() -> None:
    x = integers(60, 60, chunks=(60, 1))
    with dask.config.set({"array.rechunk.threshold": 1, "array.chunk-size": "2 kiB"}):
        z = x.rechunk((1, 60))
    assert len(z.dask.layers) > len(x.dask.layers) + 1
    assert [piece.operation for piece, _ in dgpu.explain(z).rewritten] == ["rechunk"]
    same(z)
    first = A.rechunk((3, 13))
    second = first.rechunk((11, 7))
    assert len(dgpu.explain(second, first).rewritten) == 2
    same(second, first.sum(), A.T.rechunk((13, 3)))
    with dask.config.set({"array.rechunk.method": "p2p"}):
        assert [piece.operation for piece, _ in dgpu.explain(S.rechunk((12, 2))).rewritten] == [
            "rechunk"
        ]
