"""What Dask builds for a rechunk is recognised, and nothing else is."""

from __future__ import annotations

import dask
import dask.array as da

from graph_opt.dask_graph.layers import insert
from graph_opt.pieces.rechunk import RechunkPiece
from tests.graph_opt.graphs import array, rechunks

A = array(12, 30, chunks=(12, 5))
ROWS = (3, 30)


def one(*arrays: da.Array) -> RechunkPiece:
    (piece,) = rechunks(*arrays)
    return piece


def layers_between(x: da.Array, z: da.Array) -> set[str]:
    return set(z.dask.layers) - set(x.dask.layers)


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


def test_annotations_are_carried_over() -> None:
    with dask.annotate(priority=3):
        z = A.rechunk(ROWS)
    graph = insert(z.dask, rechunks(z))
    assert graph.layers[z.name].annotations == {"priority": 3}
    assert graph.dependencies[z.name] == {A.name}


def test_nothing_is_materialised() -> None:
    x = array(8, 8) + 1
    with dask.config.set({"array.rechunk.method": "p2p"}):
        z = x.rechunk((8, 2)) + 1
    before = {name: layer.is_materialized() for name, layer in z.dask.layers.items()}
    assert rechunks(z)
    assert {name: layer.is_materialized() for name, layer in z.dask.layers.items()} == before
    assert list(before.values()).count(False) == 3
