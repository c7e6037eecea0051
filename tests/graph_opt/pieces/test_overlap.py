"""What Dask builds for overlapping blocks is recognised, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.graph_manipulation import clone
from dask.highlevelgraph import HighLevelGraph
from hypothesis import given
from hypothesis import strategies as st

from graph_opt.dask_graph.layers import insert
from graph_opt.model.cost import HOST
from graph_opt.pieces.overlap import OverlapPiece, extended
from graph_opt.pieces.rechunk import RechunkPiece
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


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_boundaries_are_part_of_the_piece(boundary: Any, depth: int) -> None:
    z = da.overlap.overlap(A, depth, boundary)
    piece = one(z)
    kind = None if boundary == "none" else boundary
    if (boundary, depth) == ("nearest", 1):
        kind = "reflect"  # they are the same
    assert (piece.output.name, piece.source.name) == (z.name, A.name)
    assert (piece.output.chunks, piece.source.chunks) == (z.chunks, A.chunks)
    assert (piece.depth, piece.boundary) == (((depth, depth),) * 2, (kind,) * 2)
    assert set(piece.inner) == layers_between(A, z)
    assert piece.inner[0] == overlap_of(z)
    assert piece.label == overlap_of(z)[: len("overlap-") + 8]
    assert piece.fault() is None
    after = insert(z.dask, [piece])
    assert after.layers.keys() == {A.name, z.name}
    assert after.dependencies[z.name] == {A.name}


KINDS: list[tuple[Any, Any, tuple[Any, ...]]] = [
    ({0: 2, 1: 3}, {0: "reflect", 1: "none"}, ("reflect", None)),
    ({0: 2, 1: 3}, {0: 0, 1: "periodic"}, (0, "periodic")),
    ((2, 2), ("nearest", "reflect"), ("nearest", "reflect")),
    ({1: 2}, "periodic", (None, "periodic")),
    ((0, 2), {0: "reflect"}, (None, None)),
]


@pytest.mark.parametrize(("depth", "boundary", "kinds"), KINDS)
def test_each_axis_has_its_own(depth: Any, boundary: Any, kinds: tuple[Any, ...]) -> None:
    z = mapped(A, depth=depth, boundary=boundary)
    piece = one(z)
    assert piece.boundary == kinds
    given = depth if isinstance(depth, dict) else dict(enumerate(depth))
    assert piece.depth == tuple((given.get(axis, 0),) * 2 for axis in (0, 1))
    assert piece.source.name == A.name


def test_asymmetric_depth() -> None:
    piece = one(mapped(A, depth={0: (1, 2), 1: (0, 3)}, boundary="none"))
    assert (piece.depth, piece.boundary) == (((1, 2), (0, 3)), (None, None))
    assert piece.output.chunks == ((6, 7, 5), (13, 13, 10))
    piece = one(mapped(A, depth={0: (1, 2), 1: 3}, boundary={0: "none", 1: "reflect"}))
    assert (piece.depth, piece.boundary) == (((1, 2), (3, 3)), (None, "reflect"))
    (window,) = halos(da.lib.stride_tricks.sliding_window_view(A, (2, 3)))
    assert window.depth == ((0, 1), (0, 2))


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("depth", [1, 12])
def test_one_chunk(boundary: Any, depth: int) -> None:
    """A slice of all there is has no layer."""
    x = array(12, chunks=12)
    z = mapped(x, depth=depth, boundary=boundary)
    piece = one(z)
    assert piece.source.name == x.name
    assert piece.output.chunks == ((12,) if boundary == "none" else (12 + 2 * depth,),)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "float16", "float32", "complex64"])
def test_a_constant_is_of_the_dtype(dtype: str) -> None:
    x = array(6, chunks=3, dtype=dtype)
    piece = one(da.overlap.overlap(x, 1, 0.1))
    (value,) = piece.boundary
    assert np.dtype(dtype).type(0.1) == value
    piece = one(da.overlap.overlap(x, 1, np.float64(1)))
    assert piece.boundary == (1,)


@pytest.mark.parametrize(
    ("dtype", "fill"), [("int16", np.nan), ("int16", np.inf), ("float32", 1e300), ("float64", 1j)]
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::numpy.exceptions.ComplexWarning")
def test_a_constant_that_the_dtype_has_not_is_for_dask(dtype: str, fill: complex) -> None:
    """Another thread may have switched warnings off."""
    x = array(6, chunks=3, dtype=dtype)
    piece = one(da.overlap.overlap(x, 1, fill))
    assert (piece.boundary, piece.output.chunks) == ((None,), ((2, 5, 5, 2),))
    assert piece.inner == (piece.output.name,)


def test_several_arrays_of_different_depths() -> None:
    x, y = array(12, 30, chunks=(4, 10)), array(30, chunks=6, seed=1)
    z = da.map_overlap(twice, x, y, depth=[1, {0: 2}], boundary=["none", "periodic"], dtype=float)
    of_x, of_y = sorted(halos(z), key=lambda piece: -piece.source.ndim)
    assert (of_x.depth, of_x.boundary) == (((1, 1), (1, 1)), (None, None))
    assert (of_y.depth, of_y.boundary) == (((2, 2),), ("periodic",))
    assert of_x.source.chunks[1] == of_y.source.chunks[0]


def test_thin_chunks_are_merged_by_a_rechunk_before() -> None:
    z = mapped(array(12, 30, chunks=(4, 3)), depth=4, boundary="reflect")
    found = matches(z).pieces
    (rechunk,) = (piece for piece in found if isinstance(piece, RechunkPiece))
    (halo,) = (piece for piece in found if isinstance(piece, OverlapPiece))
    assert halo.source.name == rechunk.output.name
    assert not {*halo.inner} & {*rechunk.inner}


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


def test_slices_that_two_share() -> None:
    y, z = (mapped(A, depth=depth, boundary="nearest") for depth in (2, 3))
    shared = {*y.dask.layers} & {*z.dask.layers} - {A.name}
    pieces = halos(y, z)
    assert len(pieces) == 2
    assert shared
    assert not shared & {name for piece in pieces for name in piece.inner}
    after = insert(HighLevelGraph.merge(y.dask, z.dask), pieces)
    assert shared <= after.layers.keys()


def test_steps_of_a_loop() -> None:
    z = A
    for _ in range(5):
        z = mapped(z, depth=1, boundary="periodic") + A
    pieces = halos(z)
    assert len({piece.output.name for piece in pieces}) == 5
    assert A.name in {piece.source.name for piece in pieces}


def test_annotations_are_carried_over() -> None:
    with dask.annotate(priority=3):
        z = da.overlap.overlap(A, 1, "reflect")
    assert insert(z.dask, halos(z)).layers[z.name].annotations == {"priority": 3}


def with_edges(left: da.Array, x: da.Array, right: da.Array, depth: int = 2) -> da.Array:
    """Overlap an array between two others, as Dask does with boundaries."""
    y = da.overlap.overlap_internal(da.concatenate([left, x, right]), {0: depth})
    return y[2 * depth : -2 * depth]


X = array(24, chunks=6)
LOOKALIKES: dict[str, Callable[[], da.Array]] = {
    "other cells": lambda: with_edges(X[1:3], X, X[-2:]),
    "another array's cells": lambda: with_edges(array(24, chunks=6, seed=5)[:2], X, X[-2:]),
    "two kinds": lambda: with_edges(X[-2:], X, X[-1:-3:-1]),
    "two values": lambda: with_edges(da.full(2, 1.0, chunks=2), X, da.full(2, 2.0, chunks=2)),
    "values one by one": lambda: with_edges(*[da.ones(4, chunks=2)[:2], X, da.ones(2)]),
    "computed": lambda: with_edges(X[:2] + 1, X, X[-2:] + 1),
    "picked": lambda: with_edges(X[[1, 0]], X, X[[23, 22]]),
}


@pytest.mark.parametrize("case", LOOKALIKES)
def test_what_only_looks_like_a_boundary(case: str) -> None:
    z = LOOKALIKES[case]()
    piece = one(z)
    assert piece.boundary == (None,)
    assert piece.inner == (piece.output.name,)
    assert piece.output.name.startswith("overlap-")


def test_trimmed_otherwise() -> None:
    x = da.overlap.reflect(X, 0, 2)
    y = da.overlap.overlap_internal(x, {0: 2})
    for z in (y[3:-4], y[4:], y[4:-4:2]):
        piece = one(z)
        assert (piece.output.name, piece.boundary) == (y.name, (None,))
    z = y[4:-4]
    piece = one(z[::-1])
    assert (piece.output.name, piece.boundary) == (z.name, ("reflect",))


@pytest.mark.parametrize(
    "z",
    [
        A + 1,
        da.concatenate([A, A]),
        da.overlap.boundaries(A, {0: 2, 1: 2}, {0: "reflect", 1: 0}),
        A.map_blocks(np.sort),
        mapped(A, depth=0, boundary="reflect"),
        da.from_array(np.ones(4), chunks=2, name="overlap-mine"),
        clone(mapped(A, depth=1, boundary="none")),
    ],
)
def test_no_overlap(z: da.Array) -> None:
    assert halos(z) == ()


DECLINED: dict[str, tuple[Callable[[], da.Array], str]] = {
    "unknown": (
        lambda: da.overlap.overlap_internal(A[A[:, 0] > 0], {1: 1}),
        "chunk sizes are unknown",
    ),
    "object": (lambda: da.overlap.overlap(A.astype(object), 1, "none"), "dtype object"),
    "masked": (
        lambda: da.overlap.overlap(da.ma.masked_greater(A, 2), 1, "none"),
        "blocks of type numpy.ma.MaskedArray are neither NumPy nor CuPy arrays",
    ),
    "negative": (
        lambda: da.overlap.overlap_internal(A, {0: -1}),
        "the depth of the overlap is negative",
    ),
    "thin": (
        lambda: da.overlap.overlap_internal(array(9, chunks=(4, 1, 4)), {0: 2}),
        "a chunk is thinner than the depth of the overlap",
    ),
}


@pytest.mark.parametrize("case", DECLINED)
def test_declined_with_one_reason_and_left_alone(case: str) -> None:
    make, expected = DECLINED[case]
    z = make()
    found = matches(z)
    assert found.pieces == ()
    (declined,) = found.declined
    assert declined.name == overlap_of(z)
    assert expected in declined.reason
    after = insert(z.dask, found.pieces)
    assert all(after.layers[name] is layer for name, layer in z.dask.layers.items())


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
            ({"wanted": ((5, 5),)}, "does not exist"),
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
