"""What Dask builds for a contraction is recognised, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
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
from tests.graph_opt.graphs import array, contractions, matches

X, Y = array(4, 6, 8, chunks=(1, 3, 5)), array(4, 8, 5, chunks=(1, 5, 2), seed=1)
M, V = array(8, 5, chunks=(5, 2)), array(8, chunks=5)
A, B = array(11, 13, chunks=(4, 5)), array(13, 7, chunks=(5, 3), seed=1)


def unknown(x: da.Array) -> da.Array:
    return x[x.sum(axis=tuple(range(1, x.ndim))) > -99]


FOUND: dict[str, tuple[Callable[[], da.Array], str]] = {
    "stacks": (lambda: X @ Y, "abc,acd->abd"),
    "one stack": (lambda: X @ M, "abc,1cd->abd"),
    "one stack, left": (lambda: M.T @ X.transpose(0, 2, 1), "1bc,dce->dbe"),
    "a stack of one": (lambda: X @ Y[:1], "abc,1cd->abd"),
    "stacks of one": (lambda: X[:1] @ Y[:1], "abc,1cd->abd"),
    "outer stacks": (lambda: X[:, None] @ Y, "a1cd,1edf->aecf"),
    "a vector": (lambda: X @ V, "abc,1cd->abd"),
    "one block along the contraction": (
        lambda: X.rechunk({2: -1}) @ Y.rechunk({1: -1}),
        "abc,acd->abd",
    ),
    "tensordot": (lambda: da.tensordot(X, M, axes=1), "abc,cd->abd"),
    "tensordot of two axes": (lambda: da.tensordot(X, Y, axes=([0, 2], [0, 1])), "abc,acd->bd"),
    "tensordot of last axes": (lambda: da.tensordot(X, M, axes=([-1], [0])), "abc,cd->abd"),
    "tensordot of all axes": (lambda: da.tensordot(X, X, axes=3), "abc,abc->"),
    "transposed contraction": (lambda: da.tensordot(A, A, axes=((0,), (0,))), "ab,ac->bc"),
    "dot with a vector": (lambda: da.tensordot(M.T, V, axes=1), "ab,b->a"),
    "einsum": (lambda: da.einsum("ij,jk->ik", A, B), "ab,bc->ac"),
    "einsum, implied order": (lambda: da.einsum("kj,ji", A, B), "ab,bc->ca"),
    "einsum, transposed": (lambda: da.einsum("ij,jk->ki", A, B), "ab,bc->ca"),
    "einsum with a batch": (lambda: da.einsum("bqd,bdk->qbk", X, Y), "abc,acd->bad"),
    "einsum with an ellipsis": (lambda: da.einsum("...qd,...dk", X, Y), "abc,acd->adb"),
    "einsum of all": (lambda: da.einsum("abc,abc", X, X), "abc,abc->"),
    "einsum by numbers": (lambda: da.einsum(X, [0, 1, 2], M, [2, 3]), "abc,cd->abd"),
    "einsum with a path": (lambda: da.einsum("ij,jk", A, B, optimize=True), "ab,bc->ac"),
    "einsum in its own dtype": (lambda: da.einsum("ij,jk", A, B, dtype="f8"), "ab,bc->ac"),
}


@pytest.mark.parametrize("case", FOUND)
def test_every_spelling(case: str) -> None:
    make, subscripts = FOUND[case]
    z = make()
    (piece,) = contractions(z)
    known = str(piece.subscripts)
    # letters are named in the order of the axes
    names = dict(zip(dict.fromkeys(known.replace("1", "")), "abcdefghi", strict=False))
    wanted = dict(zip(dict.fromkeys(subscripts.replace("1", "")), "abcdefghi", strict=False))
    assert known.translate(str.maketrans(names)) == subscripts.translate(str.maketrans(wanted))
    assert piece.output.chunks == (z[..., None].chunks if z.ndim < piece.output.ndim else z.chunks)
    assert piece.fault() is None


DECLINED: dict[str, tuple[Callable[[], da.Array], str]] = {
    "a diagonal": (lambda: da.einsum("aab,bc->ac", X[:, :4], M), "appears twice in one operand"),
    "elementwise": (lambda: da.einsum("ab,ab->ab", A, A), "no index of both operands is summed"),
    "outer": (lambda: da.tensordot(A, B, axes=0), "no index of both operands is summed"),
    "a sum": (lambda: da.einsum("ab,bc->c", A, B), "an index of one operand alone is summed"),
    "three": (lambda: da.einsum("ab,bc,cd->ad", A, B, B.T), "an einsum of 3 operands"),
    "another dtype": (
        lambda: da.einsum("ab,bc", A, B, dtype="complex128"),
        "dtype complex128 is not that of the product",
    ),
    "unknown": (lambda: unknown(X) @ M, "chunk sizes are unknown"),
    "unknown contraction": (
        lambda: da.einsum("ab,ac->bc", unknown(A), unknown(A)),
        "chunk sizes are unknown",
    ),
    "object": (lambda: X.astype(object) @ Y, "dtype object has no kernel"),
    "masked": (lambda: da.tensordot(X, da.ma.masked_greater(M, 2), axes=1), "MaskedArray"),
    "a repeated contraction": (
        lambda: da.einsum("ab,bc", A, B[:1]),
        "an axis of length 1 is summed against one of length 13",
    ),
}


@pytest.mark.parametrize("case", DECLINED)
def test_declined(case: str) -> None:
    make, expected = DECLINED[case]
    z = make()
    assert not contractions(z)
    assert [expected in each.reason for each in matches(z).declined] == [True]


@pytest.mark.parametrize("z", [A @ B, da.dot(A, B), da.einsum("ab->ba", A), da.outer(V, V)])
def test_what_is_no_contraction(z: da.Array) -> None:
    assert (contractions(z), matches(z).declined) == ((), ())


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
        ({"kept": ((9,), (0,), (0,))}, "blocks (9,) of axis 0 do not exist"),
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


def test_other_readers_of_the_partial_products() -> None:
    z = da.einsum("ab,bc->ac", A, B)
    name = next(name for name in z.dask.layers if name.startswith("chunk_einsum"))
    partial = da.Array(z.dask, name, ((4, 4, 3), (3, 3, 1), (1, 1, 1)), dtype=float)
    (declined,) = matches(z, partial).declined
    assert declined.reason == "other layers than the sum read the partial products"


def test_pieces_have_hashes() -> None:
    node = ArrayNode("x", ((1,),), "float64", "numpy.ndarray")
    piece = ContractPiece(node, node, node, Subscripts("a", "a", ""))
    assert len({piece, replace(piece)}) == 1
    np.testing.assert_equal(piece.fault(), "expected 0 axes of output, got 1")
