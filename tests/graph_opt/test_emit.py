"""Which tasks a product becomes, and which of them stay when it is culled."""

from __future__ import annotations

import pickle
from typing import Any

import dask.array as da
import numpy as np
import pytest
from dask._task_spec import fuse_linear_task_spec
from dask.array.optimization import optimize
from hypothesis import given, settings
from hypothesis import strategies as st

from graph_opt.emit import GANG, STAGE, GangLayer
from tests.graph_opt.graphs import array, layer_of, one, rewritten

A, B = array(11, 13, chunks=(4, 5)), array(13, 7, chunks=(5, 3), seed=1)


def gang_of(z: da.Array) -> GangLayer:
    return layer_of(one(z))


def culled(z: da.Array, name: str) -> GangLayer:
    """The gang of this name in the graph of ``z``, after culling."""
    graph = rewritten(z).cull(set(dask_keys(z)))
    (layer,) = (
        layer
        for layer in graph.layers.values()
        if isinstance(layer, GangLayer) and layer.piece.output.name == name
    )
    return layer


def dask_keys(z: da.Array) -> list[Any]:
    from dask.core import flatten

    return list(flatten(z.__dask_keys__()))


@settings(max_examples=30)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6))
def test_one_task_a_block_and_one(rows: int, inner: int, columns: int) -> None:
    a, b = da.zeros((2 * rows, 2 * inner), chunks=2), da.zeros((2 * inner, 2 * columns), chunks=2)
    assert len(gang_of(a @ b)) == rows * inner + inner * columns + rows * columns + 1


def test_tasks_and_their_dependencies() -> None:
    z = A @ B
    layer = gang_of(z)
    stage_a, stage_b, name = layer.names
    assert stage_a.startswith(STAGE)
    assert stage_b.startswith(STAGE)
    assert name.startswith(GANG)
    assert layer[stage_a, 1, 2].dependencies == {(A.name, 1, 2)}
    assert layer[stage_b, 2, 1].dependencies == {(B.name, 2, 1)}
    assert len(layer[name, 0].dependencies) == A.npartitions + B.npartitions
    assert all(layer[key].dependencies == {(name, 0)} for key in dask_keys(z))
    assert layer.get_output_keys() == set(dask_keys(z))


def test_an_operand_used_twice_is_staged_for_each_side() -> None:
    square = array(8, 8)
    layer = gang_of(square @ square)
    stage_a, stage_b, _ = layer.names
    assert layer[stage_a, 0, 1].dependencies == layer[stage_b, 0, 1].dependencies
    assert len(layer) == 3 * 4 + 1


def test_nothing_is_made_before_it_is_asked_for() -> None:
    layer = gang_of(A @ B)
    assert not layer.is_materialized()
    assert not layer.has_legacy_tasks
    list(layer)
    assert layer.is_materialized()


def test_names_are_deterministic_and_tell_parts_apart() -> None:
    z = A @ B
    assert gang_of(z).names == gang_of(A @ B).names
    assert gang_of(z).names != gang_of(A @ (B + 1)).names
    assert culled(z[:3], z.name).names != gang_of(z).names
    assert culled(z[:3], z.name).names == culled(z[:2], z.name).names


def test_tasks_travel() -> None:
    layer = gang_of(A @ B)
    again = pickle.loads(pickle.dumps(layer))
    assert again.names == layer.names
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
    assert layer.piece.kept == (rows, columns)
    assert layer.waste == 0
    assert len(layer) == 3 * len(rows) + 3 * len(columns) + len(rows) * len(columns) + 1
    part = layer.piece.part
    assert part.left.chunks == (tuple(A.chunks[0][i] for i in rows), A.chunks[1])
    assert part.right.chunks == (B.chunks[0], tuple(B.chunks[1][j] for j in columns))
    assert part.output.chunks == (part.left.chunks[0], part.right.chunks[1])


def test_culling_reaches_the_operands() -> None:
    x, y = A + 1, B + 1
    z = (x @ y)[:4, :3]
    tasks = rewritten(z).cull(set(dask_keys(z))).to_dict()
    assert {key for key in tasks if key[0] == x.name} == {(x.name, 0, k) for k in range(3)}
    assert {key for key in tasks if key[0] == y.name} == {(y.name, k, 0) for k in range(3)}


def test_a_large_product_cut_to_one_corner() -> None:
    x = da.ones((576, 576), chunks=64)
    z = x @ x
    layer = culled(z[:64, :64], z.name)
    assert (layer.piece.kept, len(layer)) == (((0,), (0,)), 9 + 9 + 1 + 1)


def test_products_of_products_are_culled_through() -> None:
    y = A @ A.T
    z = y @ A
    assert culled(z[:4, :5], z.name).piece.kept[0] == (0,)
    assert culled(z[:4, :5], y.name).piece.kept[0] == (0,)
    assert culled(z[:4, :5], y.name).piece.kept[1] == (0, 1, 2)


def test_waste_is_the_share_that_nobody_reads() -> None:
    x = array(12, 12)
    z = x @ x
    layer = culled(da.diagonal(z), z.name)
    assert layer.piece.kept == ((0, 1, 2), (0, 1, 2))
    assert layer.waste == pytest.approx(2 / 3)
    assert len(layer) == 9 + 9 + 3 + 1


def test_culled_away() -> None:
    layer = gang_of(A @ B)
    assert layer.cull({("something", 0, 0)}, set()) == (layer, {})


def test_culling_beside_tasks_of_the_old_form() -> None:
    """Their dependencies are found by asking all layers for their keys."""
    name = "old"
    graph = {(name, i, j): (np.full, (4, 4), float(i + j)) for i in range(2) for j in range(2)}
    x = da.Array(graph, name, ((4, 4), (4, 4)), dtype=float)
    z = x @ x
    assert x.dask.layers[name].has_legacy_tasks
    rebuilt = da.Array(rewritten(z[:4] + 1), (z[:4] + 1).name, (z[:4] + 1).chunks, meta=z)
    np.testing.assert_array_equal(rebuilt.compute(scheduler="sync"), z.compute()[:4] + 1)


def test_fusion_leaves_the_tasks_alone() -> None:
    x = (A + 1) * 2
    z = ((x @ B) + 1) * 2
    product = one(z)
    tasks = optimize(rewritten(z), dask_keys(z))
    gang = next(key for key in tasks if str(key[0]).startswith(GANG))
    assert len(tasks[gang].dependencies) == x.npartitions + B.npartitions
    for key in tasks[gang].dependencies:
        assert key[0].startswith(STAGE)
    outs = [key for key, task in tasks.items() if gang in task.dependencies]
    assert {key[0] for key in outs} == {product.output.name}
    tasks = fuse_linear_task_spec(dict(tasks), keys=set(dask_keys(z)))
    assert gang in tasks
