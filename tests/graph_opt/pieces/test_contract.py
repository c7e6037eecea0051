"""What Dask builds for a contraction is recognised, and nothing else is."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import dask.array as da
import numpy as np
import pytest

from graph_opt.model.cost import HOST
from graph_opt.model.layout import ArrayNode
from graph_opt.model.subscripts import Subscripts
from graph_opt.pieces.contract import ContractPiece
from tests.graph_opt.graphs import array, contractions

X, Y = array(4, 6, 8, chunks=(1, 3, 5)), array(4, 8, 5, chunks=(1, 5, 2), seed=1)
A, B = array(11, 13, chunks=(4, 5)), array(13, 7, chunks=(5, 3), seed=1)


def test_a_part_reads_only_what_it_needs() -> None:
    (piece,) = contractions(X @ Y)
    part = piece.restrict(frozenset({(1, 0, 2), (1, 1, 0), (3, 1, 0)}))
    assert part.kept == ((1, 3), (0, 1), (0, 2))
    assert len(part.computed) == 2 * 2 * 2
    left, right = part.staged
    assert set(left) == {(b, i, k) for b in (1, 3) for i in (0, 1) for k in (0, 1)}
    assert set(right) == {(b, k, j) for b in (1, 3) for j in (0, 2) for k in (0, 1)}
    assert part.facts["shape"] == (2, 6, 3)
    assert part.facts["inner"] == 8
    assert part.summary == "abc,acd->abd of (2, 6, 8) and (2, 8, 3) float64"


def test_the_cost_of_dask_counts_a_product_and_a_sum_for_each_pair_of_blocks() -> None:
    (piece,) = contractions(X @ Y)
    tasks, seconds = piece.dask_cost(4, HOST)
    assert tasks == 2 * 4 * 2 * 2 * 3
    assert seconds > tasks * HOST.task_seconds
    assert replace(piece, loops=True).dask_cost(4, HOST)[1] > seconds
    slow = replace(HOST, round_trip_seconds=HOST.round_trip_seconds + 1.0)
    assert piece.dask_cost(4, slow)[1] == pytest.approx(seconds + 1.0)  # once, not for each batch
    (matrices,) = contractions(da.einsum("ab,bc->ac", A, B))
    assert matrices.dask_cost(4, HOST)[0] == 2 * prod((3, 3, 3))


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"subscripts": Subscripts("ab", "acd", "abd")}, "expected 2 axes of left, got 3"),
        ({"subscripts": Subscripts("abc", "bcd", "abd")}, "expected chunks"),
        ({"subscripts": Subscripts("abc", "adc", "abd")}, "expected chunks"),
    ],
)
def test_faults(changed: dict[str, Any], expected: str) -> None:
    (piece,) = contractions(X @ Y)
    assert expected in str(replace(piece, **changed).fault())


def test_groups_of_letters() -> None:
    letters = Subscripts("hbqd", "bhkd", "bqhk")
    assert (letters.batch, letters.rows, letters.columns, letters.inner) == ("bh", "q", "k", "d")
    assert letters.groups == (("bh", "q", "d"), ("bh", "d", "k"), ("bh", "q", "k"))
    assert letters.swapped.rows == "k"
    assert Subscripts("ab", "bc", "ac").fault is None


def test_pieces_have_hashes() -> None:
    node = ArrayNode("x", ((1,),), "float64", "numpy.ndarray")
    piece = ContractPiece(node, node, node, Subscripts("a", "a", ""))
    assert len({piece, replace(piece)}) == 1
    np.testing.assert_equal(piece.fault(), "expected 0 axes of output, got 1")
