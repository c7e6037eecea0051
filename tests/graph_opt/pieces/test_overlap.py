"""What Dask builds for overlapping blocks is recognised, and nothing else is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dask
import dask.array as da
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from graph_opt.dask_graph.layers import insert
from graph_opt.model.cost import HOST
from graph_opt.pieces.overlap import OverlapPiece, extended
from tests.graph_opt.graphs import array, matches

A = array(12, 30, chunks=(4, 10))
BOUNDARIES = ["reflect", "periodic", "nearest", 2.5, "none"]


def twice(block: Any, *more: Any) -> Any:
    return block * 2


def mapped(x: da.Array, **options: Any) -> da.Array:
    return da.map_overlap(twice, x, dtype=float, **options)


def halos(*arrays: da.Array) -> tuple[OverlapPiece, ...]:
    found = matches(*arrays)
    assert not found.declined
    return tuple(piece for piece in found.pieces if isinstance(piece, OverlapPiece))


def one(*arrays: da.Array) -> OverlapPiece:
    (piece,) = halos(*arrays)
    return piece


def layers_between(x: da.Array, z: da.Array) -> set[str]:
    return set(z.dask.layers) - set(x.dask.layers)


def overlap_of(z: da.Array) -> str:
    (name,) = (layer for layer in z.dask.layers if layer.startswith("overlap-"))
    return name


def test_what_somebody_else_reads_stays() -> None:
    z = mapped(A, depth=1, boundary="reflect")
    inner = one(z).inner
    for name in inner[1:]:
        layer = z.dask.layers[name]
        facts = layer.collection_annotations
        part = da.Array(z.dask, name, facts["chunks"], dtype=float)
        piece = one(z, part)
        if name == piece.output.name:
            assert set(piece.inner) == set(inner)
            continue
        assert piece.source.name == A.name
        assert name not in piece.inner
        after = insert(z.dask, [piece])
        assert after.layers[name] is layer
    facts = z.dask.layers[inner[0]].collection_annotations
    whole = da.Array(z.dask, inner[0], facts["chunks"], dtype=float)
    piece = one(z, whole)  # with the chunks that are nothing but boundary
    assert (piece.output.name, piece.boundary) == (inner[0], (None, None))


def test_annotations_are_carried_over() -> None:
    with dask.annotate(priority=3):
        z = da.overlap.overlap(A, 1, "reflect")
    assert insert(z.dask, halos(z)).layers[z.name].annotations == {"priority": 3}


def test_nothing_is_materialised() -> None:
    z = mapped(A + 1, depth=2, boundary="nearest") + 1
    before = {name: layer.is_materialized() for name, layer in z.dask.layers.items()}
    assert halos(z)
    assert {name: layer.is_materialized() for name, layer in z.dask.layers.items()} == before


class TestPiece:
    """What the piece says of itself."""

    def test_a_part_reads_its_neighbours(self) -> None:
        x = array(20, 20, chunks=4)
        piece = one(da.overlap.overlap(x, {0: 1, 1: 1}, {0: "none", 1: "periodic"}))
        part = piece.restrict(frozenset({(0, 0)}))
        assert part.computed == ((0, 0),)
        assert part.staged == (((0, 0), (0, 1), (0, 4), (1, 0), (1, 1), (1, 4)),)
        assert piece.staged == (tuple(np.ndindex(5, 5)),)
        assert part.fault() is None
        assert "1 of 25 blocks" in part.summary

    def test_only_on_the_side_of_the_depth(self) -> None:
        x = array(20, chunks=4)
        piece = one(mapped(x, depth={0: (2, 0)}, boundary="none"))
        assert piece.restrict(frozenset({(2,)})).staged == (((1,), (2,)),)

    def test_fewer_tasks_than_dask_and_its_bytes(self) -> None:
        z = mapped(array(64, 64, chunks=16), depth=1, boundary="none")
        piece = one(z)
        tasks, seconds = piece.dask_cost(4, HOST)
        overlap = z.dask.layers[overlap_of(z)]
        aliases = piece.source.blocks  # the block itself is no slice
        assert tasks == len(overlap) - aliases
        fewer, quicker = piece.restrict(frozenset({(0, 0)})).dask_cost(4, HOST)
        assert 0 < fewer < tasks / 8
        assert 0 < quicker < seconds

    def test_faults(self) -> None:
        piece = one(mapped(A, depth=1, boundary="reflect"))
        changed: list[tuple[dict[str, Any], str]] = [
            ({"depth": ((1, 1),)}, "expected depth and boundary of 2 axes, got 1"),
            ({"depth": ((2, 2), (1, 1))}, "expected chunks"),
            ({"boundary": (None, None)}, "expected chunks"),
            (
                {"source": one(mapped(A.astype("f4"), depth=1, boundary=0)).source},
                "expected dtype float32, got float64",
            ),
        ]
        for fields, expected in changed:
            assert expected in str(replace(piece, **fields).fault())


@given(st.data())
def test_declared_chunks_are_those_of_dask(data: st.DataObject) -> None:
    ndim = data.draw(st.integers(1, 3))
    chunks = tuple(
        tuple(data.draw(st.lists(st.integers(3, 6), min_size=1, max_size=4))) for _ in range(ndim)
    )
    x = da.zeros(tuple(map(sum, chunks)), chunks=chunks)
    depth = {axis: data.draw(st.integers(0, 3)) for axis in range(ndim)}
    boundary = {axis: data.draw(st.sampled_from(BOUNDARIES)) for axis in range(ndim)}
    z = da.overlap.overlap(x, depth, boundary)
    kinds = [None if kind == "none" else kind for kind in boundary.values()]
    kinds = [kind if depth[axis] else None for axis, kind in enumerate(kinds)]
    piece = one(z)
    assert piece.source.name == x.name
    assert piece.output.chunks == z.chunks == extended(chunks, piece.depth, kinds)
