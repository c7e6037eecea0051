"""Pieces take the place of Dask's layers."""

from __future__ import annotations

from dataclasses import replace

import dask
import dask.array as da
import numpy as np
import pytest

from graph_opt.dask_graph.layers import PieceLayer, insert
from graph_opt.dask_graph.parse import ArrayGraph, parse
from graph_opt.dask_graph.rules import RULES, Rule, find
from graph_opt.pieces.matmul import MatmulPiece
from tests.graph_opt.graphs import array, emitted, matches, one, rewritten

A, B = array(11, 13, chunks=(4, 5)), array(13, 7, chunks=(5, 3), seed=1)
PRODUCT = one(A @ B)


def test_rules_start_only_where_they_can_match() -> None:
    y = ((A + 1) @ B).map_overlap(np.sin, depth=1, boundary="none")
    z = y.rechunk((11, 2))
    started: set[tuple[str, str]] = set()

    def noted(rule: Rule) -> Rule:
        def match(graph: ArrayGraph, name: str) -> None:
            started.add((rule.start, name.rpartition("-")[0]))

        return rule._replace(match=match)

    assert not find(parse(z.dask, z.__dask_keys__()), [noted(rule) for rule in RULES]).pieces
    assert started == {
        ("dask.array.routines._matmul", "matmul"),
        ("dask.layers.ArrayOverlapLayer", "overlap"),
        ("rechunk-merge", "rechunk-merge"),
    }


def test_the_piece_takes_the_place_of_the_layers_dask_built() -> None:
    z = A @ B
    product, graph = one(z), rewritten(z)
    assert isinstance(graph.layers[z.name], PieceLayer)
    assert graph.layers.keys() == z.dask.layers.keys() - product.inner | {z.name}
    assert graph.dependencies[z.name] == {A.name, B.name}


def test_the_given_graph_is_not_changed() -> None:
    z = (A @ B).sum()
    layers = dict(z.dask.layers)
    dependencies = {name: set(needed) for name, needed in z.dask.dependencies.items()}
    rewritten(z)
    assert z.dask.layers == layers
    assert z.dask.dependencies == dependencies


@pytest.mark.parametrize(
    "z",
    [
        A @ B,
        (A @ B).sum(),
        A @ A.T @ A,
        (A @ B)[2:5, ::2],
        A[:0] @ B,
        A @ B[:, :0],
        A @ B + A @ B,
        da.stack([A @ B, (A @ B) * 2]),
        da.linalg.norm(da.dot(A, B)),
        A @ B[:, 0],
        A[0] @ B,
    ],
)
def test_the_rewritten_graph_computes_the_same(z: da.Array) -> None:
    graph = emitted(z)
    graph.validate()
    rebuilt = da.Array(graph, z.name, z.chunks, meta=z)
    np.testing.assert_array_equal(
        rebuilt.compute(scheduler="sync", optimize_graph=False),
        z.compute(scheduler="sync"),
        strict=True,
    )
    np.testing.assert_array_equal(rebuilt.compute(scheduler="sync"), z.compute(scheduler="sync"))


def test_nothing_found_nothing_changed() -> None:
    x = A + 1
    graph = insert(x.dask, matches(x).pieces)
    assert graph.layers == x.dask.layers
    assert graph.dependencies == x.dask.dependencies


def test_annotations_are_carried_over() -> None:
    with dask.annotate(workers=["tcp://a"], priority=3):
        z = A @ B
    assert rewritten(z).layers[z.name].annotations == {"workers": ["tcp://a"], "priority": 3}
    assert rewritten(A @ B.T.T).layers[(A @ B.T.T).name].annotations is None


@pytest.mark.parametrize(
    ("product", "message"),
    [
        (replace(PRODUCT, right=PRODUCT.left), "expected chunks (5, 5, 3) of b in right"),
        (
            replace(PRODUCT, output=replace(PRODUCT.output, chunks=((11,), (7,)))),
            "expected chunks (4, 4, 3) of a in output, got (11,)",
        ),
    ],
)
def test_faults(product: MatmulPiece, message: str) -> None:
    assert message in str(product.fault())
