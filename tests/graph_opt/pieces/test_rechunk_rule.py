"""What Dask builds for a rechunk is recognised, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.graph_manipulation import bind, clone
from dask.highlevelgraph import HighLevelGraph

from graph_opt.dask_graph.layers import insert
from graph_opt.pieces.rechunk import RechunkPiece
from tests.graph_opt.graphs import array, matches, products, rechunks

A, B = array(12, 30, chunks=(12, 5)), array(6, 7, 8, chunks=(3, 7, 2), seed=1)
ROWS = (3, 30)


@pytest.fixture(params=["tasks", "p2p"])
def method(request: pytest.FixtureRequest) -> Iterator[str]:
    with dask.config.set({"array.rechunk.method": request.param}):
        yield request.param


def one(*arrays: da.Array) -> RechunkPiece:
    (piece,) = rechunks(*arrays)
    return piece


def layers_between(x: da.Array, z: da.Array) -> set[str]:
    return set(z.dask.layers) - set(x.dask.layers)


def test_either_method(method: str) -> None:
    z = A.rechunk(ROWS)
    piece = one(z)
    assert (piece.output.name, piece.source.name) == (z.name, A.name)
    assert (piece.output.chunks, piece.source.chunks) == (z.chunks, A.chunks)
    assert (piece.axes, piece.task) == ((0, 1), None)
    assert set(piece.inner) == layers_between(A, z)
    assert piece.label == z.name[: z.name.rindex("-") + 9]
    assert piece.fault() is None


def test_several_passes_are_one_piece() -> None:
    x = da.ones((60, 60), chunks=(60, 1))
    with dask.config.set({"array.rechunk.threshold": 1, "array.chunk-size": "2 kiB"}):
        z = x.rechunk((1, 60))
    assert len(layers_between(x, z)) >= 2
    piece = one(z)
    assert set(piece.inner) == layers_between(x, z)
    assert piece.source.name == x.name
    assert all(
        stage.tasks == len(z.dask.layers[name])
        for stage, name in zip(piece.stages, piece.inner, strict=True)
    )
    assert [stage.before for stage in piece.stages[1:]] == [s.after for s in piece.stages[:-1]]


def test_a_pass_before_p2p() -> None:
    x = da.ones((8, 8), chunks=4)
    with dask.config.set({"array.rechunk.method": "p2p"}):
        z = x.rechunk((8, 2))
    before, after = (layer.partition("-")[2] for layer in one(z).inner)
    assert (before[:5], after[:3]) == ("merge", "p2p")
    assert set(one(z).inner) == layers_between(x, z)
    assert one(z).source.name == x.name


def test_several_calls_are_one_piece(method: str) -> None:
    z = A.rechunk(ROWS).rechunk((5, 7)).rechunk((12, 30))
    assert set(one(z).inner) == layers_between(A, z)


TRANSPOSED: list[tuple[Callable[[da.Array], da.Array], tuple[int, ...]]] = [
    (lambda x: x.T.rechunk((3, 5, 4)), (2, 1, 0)),
    (lambda x: x.transpose((1, 2, 0)).rechunk((3, 5, 4)), (1, 2, 0)),
    (lambda x: da.moveaxis(x, 0, -1).rechunk((3, 5, 4)), (1, 2, 0)),
    (lambda x: da.swapaxes(x, 0, -1).rechunk((3, 5, 4)), (2, 1, 0)),
    (lambda x: x.transpose((1, 2, 0)).transpose((1, 2, 0)).rechunk((3, 5, 4)), (2, 0, 1)),
    (lambda x: x.rechunk(3).transpose((1, 2, 0)).rechunk((2, 4, 4)), (1, 2, 0)),
    (lambda x: x.T.rechunk(3).T.rechunk(4), (0, 1, 2)),
]


@pytest.mark.parametrize(("make", "axes"), TRANSPOSED)
def test_transposes_are_taken_along(
    make: Callable[[da.Array], da.Array], axes: tuple[int, ...]
) -> None:
    z = make(B)
    piece = one(z)
    assert (piece.axes, piece.source.name) == (axes, B.name)
    assert (piece.task is None) == (axes == (0, 1, 2))
    assert set(piece.inner) == layers_between(B, z)
    assert piece.fault() is None
    assert piece.output.shape == np.empty(B.shape).transpose(axes).shape


def test_what_somebody_else_reads_stays() -> None:
    transposed = A.T
    z = transposed.rechunk((30, 3))
    assert one(z, transposed).source.name == transposed.name
    assert one(z, transposed + 1).source.name == transposed.name
    first = A.rechunk(ROWS)
    second = first.rechunk((12, 7))
    pieces = {piece.output.name: piece for piece in rechunks(second, first.sum())}
    assert pieces[second.name].source.name == first.name
    assert pieces[first.name].source.name == A.name
    assert len(rechunks(second, first)) == 2


@pytest.mark.parametrize(
    "blocks",
    [
        lambda x: da.blockwise(np.transpose, "ij", x, "ij", dtype=float),
        lambda x: x.map_blocks(np.transpose, chunks=x.chunks[::-1]),
        lambda x: da.flip(x, 0),
    ],
)
def test_block_functions_that_only_look_like_a_transpose(blocks: Any) -> None:
    x = blocks(array(12, 12, chunks=3))
    assert one(x.rechunk(4)).source.name == x.name


def test_operands_of_different_chunks() -> None:
    x = array(12, 12, chunks=(12, 3))
    z = x + x.T
    pieces = {piece.axes: piece for piece in rechunks(z)}
    assert set(pieces) == {(0, 1), (1, 0)}
    assert all(piece.source.name == x.name for piece in pieces.values())
    assert {piece.output.chunks for piece in pieces.values()} == {z.chunks}


def test_beside_products() -> None:
    z = (A.rechunk(ROWS) @ A.T.rechunk((7, 3))).rechunk(4)
    (product,) = products(z)
    pieces = rechunks(z)
    assert product.output.name in {piece.source.name for piece in pieces}
    assert {product.left.name, product.right.name} <= {piece.output.name for piece in pieces}


def test_persisted(method: str) -> None:
    x = A.persist(scheduler="sync")
    assert one(x.rechunk(ROWS)).source.name == x.name


def test_empty_chunks_and_empty_arrays(method: str) -> None:
    assert one(A.rechunk(((0, 5, 0, 7), 15))).output.blocks == 8
    assert rechunks(A[:0].rechunk((0, 7))) == ()  # Dask makes a new array
    assert rechunks(da.ones(()).rechunk(())) == ()


def test_annotations_are_carried_over() -> None:
    with dask.annotate(priority=3):
        z = A.rechunk(ROWS)
    graph = insert(z.dask, rechunks(z))
    assert graph.layers[z.name].annotations == {"priority": 3}
    assert graph.dependencies[z.name] == {A.name}


def test_rebuilt_graphs() -> None:
    z = A.rechunk(ROWS)
    for x in (clone(z), bind(z, A.sum())):  # Dask forgets what the inner layers are
        assert not matches(x).pieces


@pytest.mark.parametrize(
    "z",
    [
        A + 1,
        A.T,
        A.T + 1,
        A[::2, 3:],
        da.concatenate([A, A]),
        da.stack([A, A]),
        A.map_blocks(np.sort),
        da.from_array(np.ones(4), chunks=2, name="rechunk-merge-mine"),
        da.from_array(np.ones(4), chunks=2, name="rechunk-p2p-mine"),
    ],
)
def test_no_rechunk(z: da.Array) -> None:
    found = matches(z)
    assert (found.pieces, found.declined) == ((), ())


def unknown() -> da.Array:
    return A[A[:, 0] > 0]


DECLINED: dict[str, tuple[Callable[[], da.Array], str]] = {
    "unknown": (lambda: unknown().rechunk({1: 7}), "chunk sizes are unknown"),
    "learnt late": (
        lambda: unknown().compute_chunk_sizes().rechunk({1: 7}),
        "chunk sizes are unknown",
    ),
    "contradicting": (
        lambda: da.topk(A, 4, axis=1).rechunk({1: 2}),
        "chunk sizes are unknown",
    ),
    "object": (lambda: A.astype(object).rechunk(ROWS), "dtype object has no kernel"),
    "structured": (
        lambda: A.astype([("re", "f4"), ("im", "f4")]).rechunk(ROWS),
        "has no kernel",
    ),
    "masked": (
        lambda: da.ma.masked_greater(A, 2).rechunk(ROWS),
        "blocks of type numpy.ma.MaskedArray are neither NumPy nor CuPy arrays",
    ),
}


@pytest.mark.parametrize("case", DECLINED)
def test_declined_with_one_reason_and_left_alone(case: str, method: str) -> None:
    make, expected = DECLINED[case]
    z = make()
    found = matches(z)
    assert found.pieces == ()
    (declined,) = found.declined
    assert declined.name == z.name
    assert expected in declined.reason
    after = insert(z.dask, found.pieces)
    assert after.dependencies == z.dask.dependencies
    assert all(after.layers[name] is layer for name, layer in z.dask.layers.items())


def test_others_are_left_alone() -> None:
    z, other = A.rechunk(ROWS), unknown().rechunk({1: 7})
    both = HighLevelGraph.merge(z.dask, other.dask)
    after = insert(both, rechunks(z, other))
    assert all(after.layers[name] is layer for name, layer in other.dask.layers.items())


def test_nothing_is_materialised() -> None:
    x = array(8, 8) + 1
    with dask.config.set({"array.rechunk.method": "p2p"}):
        z = x.rechunk((8, 2)) + 1
    before = {name: layer.is_materialized() for name, layer in z.dask.layers.items()}
    assert rechunks(z)
    assert {name: layer.is_materialized() for name, layer in z.dask.layers.items()} == before
    assert list(before.values()).count(False) == 3
