from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from dask.highlevelgraph import HighLevelGraph

from graph_opt.dask_graph.piece_layer import PieceLayer
from graph_opt.passes.rewrite import IllegalGraphError, check
from graph_opt.pieces.matmul import MatmulPiece
from tests.graph_opt.graphs import array, one, rewritten

A, B = array(11, 13, chunks=(4, 5)), array(13, 7, chunks=(5, 3), seed=1)
PRODUCT = one(A @ B)


def graph(product: MatmulPiece, **parts: Any) -> HighLevelGraph:
    layer = PieceLayer(replace(product, **parts))
    return HighLevelGraph({product.output.name: layer}, {product.output.name: set()})


def test_legal_graphs_are_returned() -> None:
    legal = rewritten((A @ B).sum())
    assert check(legal) is legal


@pytest.mark.parametrize(
    ("product", "parts", "message"),
    [
        (replace(PRODUCT, right=PRODUCT.left), {}, "expected equal inner lengths"),
        (
            replace(PRODUCT, output=replace(PRODUCT.output, chunks=((11,), (7,)))),
            {},
            r"expected chunks .*, got \(\(11,\), \(7,\)\)",
        ),
        (PRODUCT, {"rows": (0, 3)}, "block rows"),
        (PRODUCT, {"columns": (-1,)}, "block columns"),
    ],
)
def test_illegal_gangs(product: MatmulPiece, parts: Any, message: str) -> None:
    with pytest.raises(IllegalGraphError, match=message):
        check(graph(product, **parts))


def test_layers_that_do_not_exist() -> None:
    layers = dict(A.dask.layers)
    with pytest.raises(IllegalGraphError, match=r"reads .*nowhere"):
        check(HighLevelGraph(layers, {name: {"nowhere"} for name in layers}))
    with pytest.raises(IllegalGraphError, match="layer ghost has dependencies"):
        check(HighLevelGraph(layers, {"ghost": set()}))
