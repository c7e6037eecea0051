"""Layers whose tasks depend on each other are steps, and their blocks have known sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

from graph_opt.dask_graph.blockwork import in_levels
from graph_opt.dask_graph.emit import GangLayer
from graph_opt.dask_graph.parse import is_member, parse
from graph_opt.model.layout import ArrayNode
from graph_opt.model.piece import Blockwork, Region
from tests.graph_opt.graphs import emitted, regions

RNG = np.random.default_rng(20)
A, V, T = RNG.random((12, 8)), RNG.random(24), RNG.random((40, 5))
S = RNG.random((12, 12)) + 12 * np.eye(12)


def lazy(values: Any, chunks: Any) -> da.Array:
    return da.from_array(values, chunks=chunks)


def added(x: Any, y: Any) -> Any:
    return x + y


Make = Callable[[], da.Array]

FORMS: dict[str, tuple[Make, int]] = {
    "running sum": (lambda: da.cumsum(lazy(A, 4), axis=0), 4),
    "thin running sum": (lambda: da.cumsum(lazy(A, (1, 8)), axis=0), 14),
    "running product": (lambda: da.cumprod(lazy(A, 4), axis=1), 4),
    "without NaN": (lambda: da.nancumsum(lazy(V, 6), axis=0), 4),
    "by Blelloch": (lambda: da.cumsum(lazy(V, 6), axis=0, method="blelloch"), 3),
    "running user's": (
        lambda: da.reductions.cumreduction(np.cumsum, added, 0, lazy(V, 6), dtype="f8"),
        4,
    ),
    "integers": (lambda: da.cumsum(lazy(V > 0.5, 6)), 4),
    "QR": (lambda: da.linalg.qr(lazy(T, (20, 5)))[0], 8),
    "R": (lambda: da.linalg.qr(lazy(T, (20, 5)))[1], 5),
    "recursive QR": (lambda: da.linalg.qr(lazy(T, (10, 5)))[0], 14),
    "wide QR": (lambda: da.linalg.qr(lazy(T.T.copy(), (5, 10)))[1], 7),
    "singular values": (lambda: da.linalg.svd(lazy(T, (10, 5)))[1], 11),
    "Cholesky": (lambda: da.linalg.cholesky(lazy(S @ S.T, 4)), 10),
    "lower Cholesky": (lambda: da.linalg.cholesky(lazy(S @ S.T, 4), lower=True), 9),
    "LU": (lambda: da.linalg.lu(lazy(S, 4))[2], 16),
    "triangular": (
        lambda: da.linalg.solve_triangular(lazy(np.tril(S), 4), lazy(A, 4), lower=True),
        5,
    ),
    "percentile": (lambda: da.percentile(lazy(V, 6), [25, 75]), 2),
    "taken": (lambda: lazy(A, 4)[[7, 1, 10, 1]], 3),
    "assigned": (lambda: _assigned(lazy(A, 4)), 2),
}


def _assigned(x: da.Array) -> da.Array:
    x[2:9, 3] = 7.0
    return x


def region_of(z: da.Array) -> Region:
    (region,) = regions(z, local=True)
    return region


@pytest.mark.parametrize("form", FORMS)
def test_steps_compute_what_dask_does(form: str) -> None:
    make, steps = FORMS[form]
    z = make()
    graph = emitted(z, local=True)
    assert sum(isinstance(layer, GangLayer) for layer in graph.layers.values()) == 1
    found = da.Array(graph, z.name, z.chunks, meta=z).compute(
        scheduler="sync", optimize_graph=False
    )
    with dask.config.set(array_optimize=None):
        expected = z.compute(scheduler="sync", optimize_graph=False)
    np.testing.assert_array_equal(found, expected, strict=True)
    assert len(region_of(z).works) == steps


def nbytes(block: Any) -> int:
    if isinstance(block, list | tuple):
        return sum(map(nbytes, block))
    return int(getattr(block, "nbytes", 0)) if isinstance(block, np.ndarray) else 0


@pytest.mark.parametrize("form", sorted(set(FORMS) - {"wide QR", "LU", "assigned"}))
def test_sizes_are_those_of_the_blocks(form: str) -> None:
    """Of LU, Dask's function for several results and its permutations are not known."""
    region = region_of(FORMS[form][0]())
    blocks: dict[Any, Any] = {}
    for node, indices in region.inputs:
        for index in indices:
            blocks[node.name, *index] = _source(node, index, form)
    for work in region.works:
        made = {key: task(blocks) for key, task in _tasks(work).items()}
        blocks |= made
        for (_, *index), block in made.items():
            declared = np.prod(work.output.block_shape(tuple(index))) * work.output.itemsize
            assert declared == nbytes(block), work.output.name
    for member in region.blockworks:
        own = {step.output.name for step in member.before}
        assert own.isdisjoint(name for name, _ in member.reads())


def _tasks(work: Blockwork) -> dict[Any, Any]:
    name = work.output.name
    return {(name, *index): work.layer[name, *index] for index in work.computed}


def _source(node: ArrayNode, index: tuple[int, ...], form: str) -> Any:
    shape = node.block_shape(index)
    if "Cholesky" in form:
        return np.eye(*shape) * 9 if index[0] == index[1] else np.zeros(shape)
    if form == "triangular":
        return np.tril(np.ones(shape))
    return np.ones(shape, node.dtype)


def test_levels_read_only_levels_before_them() -> None:
    node = ArrayNode("y", ((1, 1, 1),), "float64", "numpy.ndarray")
    needs = {
        ("y", 2): {("t", 1), ("x", 2)},
        ("t", 1): {("t", 0), ("x", 1)},
        ("t", 0): {("x", 0), "taker"},
        ("y", 0): {("x", 0)},
        ("y", 1): {("y", 0), ("x", 1)},
        "taker": set(),
    }
    assert in_levels(needs, node) == [["taker", ("y", 0)], [("t", 0)], [("t", 1)]]
    assert in_levels({("y", 0): {("x", 0)}}, node) == []


def test_tasks_of_several_layers_stay_with_dask() -> None:
    """``solve`` reads both factors, whose layers hold the same tasks."""
    z = da.linalg.solve(lazy(S @ S.T, 4), lazy(A, 4), assume_a="pos")
    facts = parse(z.dask, z.__dask_keys__())
    found = {name.rpartition("-")[0] for name in z.dask.layers if is_member(facts, name)}
    assert found == {"solve-triangular"}


def test_writers_stay_with_dask(tmp_path: Any) -> None:
    """A layer that is requested and declares no array may do anything."""
    x = lazy(A, 4)
    graph = dask.highlevelgraph.HighLevelGraph.from_collections(
        "saved",
        {("saved", at, 0): (np.save, str(tmp_path / "x"), (x.name, at, 0)) for at in range(3)},
        [x],
    )
    facts = parse(graph, [("saved", 0, 0)])
    assert not any(is_member(facts, name) for name in graph.layers)
