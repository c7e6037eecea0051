"""Which tasks a product becomes, and which of them stay when it is culled."""

from __future__ import annotations

import pickle
from typing import Any

import dask.array as da
import numpy as np
import pytest
from dask._task_spec import fuse_linear_task_spec
from dask.array.optimization import optimize
from hypothesis import given
from hypothesis import strategies as st

from graph_opt.dask_graph.layers import PieceLayer
from graph_opt.dask_graph.parse import cull
from graph_opt.model.names import GANG, STAGE
from graph_opt.model.piece import Region
from graph_opt.pieces.matmul import MatmulPiece
from tests.graph_opt.graphs import (
    array,
    emitted,
    keys_of,
    layer_of,
    one,
    regions,
    rewritten,
)
from tests.support.profiles import examples

A, B = array(11, 13, chunks=(4, 5)), array(13, 7, chunks=(5, 3), seed=1)


def region_of(z: da.Array) -> Region:
    (region,) = regions(z)
    return region


def culled(z: da.Array, name: str) -> PieceLayer:
    """The piece of this name in the graph of ``z``, after culling."""
    layer = cull(rewritten(z), keys_of(z)).graph.layers[name]
    assert isinstance(layer, PieceLayer)
    return layer


def kept(layer: PieceLayer) -> Any:
    assert isinstance(layer.piece, MatmulPiece)
    return layer.piece.lines


@examples(30)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6))
def test_one_task_a_block_and_one(rows: int, inner: int, columns: int) -> None:
    a, b = da.zeros((2 * rows, 2 * inner), chunks=2), da.zeros((2 * inner, 2 * columns), chunks=2)
    read = {*keys_of(a), *keys_of(b)}  # zeros of one shape are one array
    assert region_of(a @ b).tasks == len(read) + rows * columns + 1
    assert len(emitted(a @ b).to_dict()) == 2 * len(read) + rows * columns + 1


def test_tasks_and_their_dependencies() -> None:
    z = A @ B
    graph, region = emitted(z), region_of(z)
    layer = layer_of(region)
    stages = {key: task for key, task in layer.items() if key[0].startswith(STAGE)}
    read = [task.dependencies for task in stages.values()]
    assert sorted(map(tuple, read)) == sorted((key,) for key in keys_of(A, B))
    (name, zero) = layer.gang
    assert name.startswith(GANG)
    assert layer[name, zero].dependencies == stages.keys()
    outs = graph.layers[z.name]
    assert outs.keys() == set(keys_of(z))
    assert all(task.dependencies == {(name, 0)} for task in outs.values())


def test_an_operand_used_twice_is_staged_once() -> None:
    square = array(8, 8)
    assert region_of(square @ square).tasks == 2 * 4 + 1


def test_names_are_deterministic_and_tell_parts_apart() -> None:
    z = A @ B
    assert region_of(z).token == region_of(A @ B).token
    assert region_of(z).token != region_of(A @ (B + 1)).token
    assert region_of(z[:3]).token != region_of(z).token
    assert region_of(z[:3]).token == region_of(z[:2]).token


def test_tasks_travel() -> None:
    layer = layer_of(region_of(A @ B))
    again = pickle.loads(pickle.dumps(layer))
    assert again.gang == layer.gang
    assert set(again) == set(layer)


@pytest.mark.parametrize(
    ("index", "rows", "columns"),
    [
        (np.s_[:4, :3], (0,), (0,)),
        (np.s_[4:9], (1, 2), (0, 1, 2)),
        (np.s_[:, 6], (0, 1, 2), (2,)),
        (np.s_[10, 0], (2,), (0,)),
        (np.s_[::10, ::6], (0, 2), (0, 2)),
    ],
)
def test_culling_keeps_the_rows_and_columns_that_are_read(
    index: Any, rows: tuple[int, ...], columns: tuple[int, ...]
) -> None:
    z = A @ B
    layer = culled(z[index], z.name)
    assert kept(layer) == (rows, columns)
    assert len(layer.wanted) == len(layer.piece.computed)
    tasks = 3 * len(rows) + 3 * len(columns) + len(rows) * len(columns) + 1
    assert region_of(z[index]).tasks == tasks
    assert isinstance(layer.piece, MatmulPiece)
    left, right = layer.piece.chunks
    assert left == (tuple(A.chunks[0][i] for i in rows), A.chunks[1])
    assert right == (B.chunks[0], tuple(B.chunks[1][j] for j in columns))


def test_culling_reaches_the_operands() -> None:
    x, y = A + 1, B + 1
    z = (x @ y)[:4, :3]
    tasks = emitted(z).to_dict()
    assert {key for key in tasks if key[0] == x.name} == {(x.name, 0, k) for k in range(3)}
    assert {key for key in tasks if key[0] == y.name} == {(y.name, k, 0) for k in range(3)}


def test_a_large_product_cut_to_one_corner() -> None:
    x = da.ones((576, 576), chunks=64)
    z = x @ x
    assert kept(culled(z[:64, :64], z.name)) == ((0,), (0,))
    assert region_of(z[:64, :64]).tasks == 9 + 8 + 1 + 1  # one block is in both operands


def test_products_of_products_are_culled_through() -> None:
    y = A @ A.T
    z = y @ A
    assert kept(culled(z[:4, :5], z.name))[0] == (0,)
    assert kept(culled(z[:4, :5], y.name))[0] == (0,)
    assert kept(culled(z[:4, :5], y.name))[1] == (0, 1, 2)


def test_more_blocks_are_computed_than_are_read() -> None:
    x = array(12, 12)
    z = x @ x
    layer = culled(da.diagonal(z), z.name)
    assert kept(layer) == ((0, 1, 2), (0, 1, 2))
    assert len(layer.wanted) == len(layer.piece.computed) / 3
    assert region_of(da.diagonal(z)).tasks == 9 + 3 + 1


def test_a_piece_has_no_tasks_of_its_own() -> None:
    layer = PieceLayer(one(A @ B))
    assert layer.cull({("something", 0, 0)}, set()) == (layer, {})
    assert not layer.is_materialized()
    assert not layer.has_legacy_tasks
    assert set(layer) == set(keys_of(A @ B))
    with pytest.raises(KeyError, match=r"no tasks before emit\(\)"):
        layer[(A @ B).name, 0, 0]


def test_culling_beside_tasks_of_the_old_form() -> None:
    """Their dependencies are found by asking all layers for their keys."""
    name = "old"
    graph = {(name, i, j): (np.full, (4, 4), float(i + j)) for i in range(2) for j in range(2)}
    x = da.Array(graph, name, ((4, 4), (4, 4)), dtype=float)
    z = x @ x
    assert x.dask.layers[name].has_legacy_tasks
    rebuilt = da.Array(emitted(z[:4] + 1), (z[:4] + 1).name, (z[:4] + 1).chunks, meta=z)
    np.testing.assert_array_equal(rebuilt.compute(scheduler="sync"), z.compute()[:4] + 1)


def test_fusion_leaves_the_tasks_alone() -> None:
    x = (A + 1) * 2
    z = ((x @ B) + 1) * 2
    product = one(z)
    tasks = optimize(emitted(z), keys_of(z))
    gang = next(key for key in tasks if str(key[0]).startswith(GANG))
    assert len(tasks[gang].dependencies) == x.npartitions + B.npartitions
    for key in tasks[gang].dependencies:
        assert key[0].startswith(STAGE)
    outs = [key for key, task in tasks.items() if gang in task.dependencies]
    assert {key[0] for key in outs} == {product.output.name}
    tasks = fuse_linear_task_spec(dict(tasks), keys=set(keys_of(z)))
    assert gang in tasks
