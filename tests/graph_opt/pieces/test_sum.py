"""Which sums are for a gang, and what their piece knows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu
from graph_opt.dask_graph.parse import parse
from graph_opt.dask_graph.rules import find
from graph_opt.model.cost import HOST
from graph_opt.model.layout import dtype_named
from graph_opt.pieces.sum import SumPiece

WIDE = 100_000


def source(rows: int = 6, columns: int = 2 * WIDE) -> da.Array:
    """Blocks that are there, as they are after a persist."""
    x = da.ones((rows, columns), chunks=(1, WIDE))
    return x.persist(scheduler="synchronous")


def pieces(y: da.Array) -> tuple[Any, ...]:
    matches = find(parse(y.__dask_graph__(), y.__dask_keys__()))
    assert matches.declined == ()
    return matches.pieces


@pytest.mark.parametrize("method", ["compensated", "reproducible"])
@pytest.mark.parametrize("keepdims", [False, True])
def test_wide_sums_match(method: Any, keepdims: bool) -> None:
    x = source()
    for name, function in (("sum", dgpu.sum), ("mean", dgpu.mean)):
        y = function(x, 0, keepdims, method=method)
        (piece,) = pieces(y)
        assert isinstance(piece, SumPiece)
        assert (piece.source.name, piece.output.name) == (x.name, y.name)
        assert (piece.axes, piece.keepdims, piece.method, piece.kind) == (
            (0,),
            keepdims,
            method,
            name,
        )
        assert set(piece.inner) == set(y.dask.layers) - {x.name}
        assert piece.fault() is None
        assert len(piece.computed) == 2
        assert piece.staged == (tuple(piece.source.indices),)


def test_bfloat16_matches_where_other_rules_decline_it() -> None:
    x = source().astype(dtype_named("bfloat16")).persist(scheduler="synchronous")
    (piece,) = pieces(dgpu.sum(x, 0))
    assert (piece.source.dtype, piece.output.dtype) == ("bfloat16", "bfloat16")
    assert piece.source.nbytes == 2 * piece.source.size
    y = x.rechunk((6, 1000))
    matches = find(parse(y.__dask_graph__(), y.__dask_keys__()))
    assert matches.pieces == ()
    assert {each.reason for each in matches.declined} <= {"dtype bfloat16 has no kernel"}


def test_layers_between_are_part_of_it() -> None:
    x = source(rows=30)
    with dgpu.enable(sum_method="compensated", on_error="raise"):
        z = x.sum(axis=0, split_every=2)  # a tree, as a user asks for it
    (piece,) = pieces(z)
    assert len(piece.inner) > 3


def test_what_is_left_to_dask() -> None:
    x = source()
    assert pieces(dgpu.sum(x)) == ()  # few numbers
    assert pieces(dgpu.sum(x, 1)) == ()
    assert pieces(dgpu.sum(x * 2, 0)) == ()  # fused with what is before it
    assert pieces(x.sum(0)) == ()
    assert len(pieces(dgpu.sum(x.rechunk((2, WIDE)), 0))) == 2
    y = x * 2
    both = [dgpu.sum(y, 0), y + 1]
    graph = both[0].dask.__class__.merge(*(z.dask for z in both))
    assert len(find(parse(graph, [z.__dask_keys__() for z in both])).pieces) == 1


def test_a_part_reads_what_it_needs() -> None:
    (piece,) = pieces(dgpu.sum(source(), 0, keepdims=True))
    part = piece.restrict(frozenset([(0, 1)]))
    assert part.computed == ((0, 1),)
    assert part.staged == (tuple((row, 1) for row in range(6)),)
    assert part.fault() is None
    assert "from 12 to 1 block" in part.summary
    assert replace(part, wanted=((0, 2),)).fault() == "block (0, 2) does not exist"
    assert replace(part, axes=(2,)).fault() == "expected some of 2 axes, got (2,)"
    assert "expected chunks" in str(replace(part, axes=(1,)).fault())


def test_cost_of_plain_dask() -> None:
    (piece,) = pieces(dgpu.sum(source(), 0))
    tasks, seconds = piece.dask_cost(4, HOST)
    assert tasks == 12 + 2
    assert seconds > tasks * HOST.task_seconds + 12 * 16 * WIDE * 0.75 / (1e8 * 2)


def test_gang_makes_them() -> None:
    a = np.random.default_rng(1).random((6, 2 * WIDE), "float32")
    x = da.from_array(a, chunks=(1, WIDE)).persist(scheduler="synchronous")
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        for method in ("compensated", "reproducible"):
            y = dgpu.sum(x, 0, method=method)
            (told,) = dgpu.explain(y).to_dict()["rewritten"]
            assert told["method"] == method
            np.testing.assert_array_equal(
                y.compute(scheduler="threads"), a.sum(0, dtype=float).astype("float32")
            )
            part = y[WIDE + 3 : WIDE + 9]
            np.testing.assert_allclose(part.compute(), a[:, WIDE + 3 : WIDE + 9].sum(0), rtol=1e-6)
