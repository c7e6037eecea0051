"""Which blocks a rechunk reads and makes, and what Dask would pay for it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, permutations
from itertools import product as cartesian
from typing import Any

import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph_opt.dask_graph.layers import PieceLayer
from graph_opt.model.cost import CUDA, HOST, Machine, dask_rechunk_seconds
from graph_opt.model.layout import ArrayNode, Index, common_lengths, cuts_of, spread
from graph_opt.model.piece import Region
from graph_opt.pieces.rechunk import RechunkPiece, Stage
from tests.graph_opt.graphs import array, layer_of, rechunks

A = array(12, 30, chunks=(12, 5))


@st.composite
def chunks_of(draw: st.DrawFn, length: int) -> tuple[int, ...]:
    edges = sorted(draw(st.lists(st.integers(0, length), max_size=4)))
    return tuple(hi - lo for lo, hi in pairwise([0, *edges, length]))


@st.composite
def pieces(draw: st.DrawFn) -> RechunkPiece:
    shape = draw(st.lists(st.sampled_from([0, 1, 2, 5, 7]), min_size=1, max_size=3))
    axes = draw(st.sampled_from(list(permutations(range(len(shape))))))
    before = tuple(draw(chunks_of(length)) for length in shape)
    after = tuple(draw(chunks_of(shape[axis])) for axis in axes)
    source = ArrayNode("x", before, "float64", "numpy.ndarray")
    output = ArrayNode("y", after, "float64", "numpy.ndarray")
    return RechunkPiece(output, source, axes, (), inner=("y",))


def box(node: ArrayNode, index: Index) -> tuple[slice, ...]:
    cuts = [cuts_of(sizes) for sizes in node.chunks]
    return tuple(slice(c[at], c[at + 1]) for c, at in zip(cuts, index, strict=True))


@given(pieces(), st.data())
def test_what_is_read_is_what_the_wanted_blocks_overlap(
    piece: RechunkPiece, data: st.DataObject
) -> None:
    blocks = list(piece.output.indices)
    wanted = frozenset(data.draw(st.sets(st.sampled_from(blocks))))
    part = piece.restrict(wanted)
    assert set(part.computed) == wanted
    assert list(part.computed) == sorted(wanted)
    mask = np.zeros(piece.output.shape, bool)
    for index in wanted:
        mask[box(piece.output, index)] = True
    inverse = np.argsort(piece.axes)
    mask = mask.transpose(inverse)
    overlapping = tuple(
        index for index in piece.source.indices if mask[box(piece.source, index)].any()
    )
    assert part.staged == (overlapping,)
    assert part.fault() is None


@given(pieces())
def test_all_that_is_not_empty_is_read_for_the_whole(piece: RechunkPiece) -> None:
    full = [
        i for i in piece.source.indices if np.empty(piece.source.shape)[box(piece.source, i)].size
    ]
    assert piece.staged == (tuple(full),)
    assert piece.computed == tuple(piece.output.indices)


@given(st.integers(0, 9), st.data())
def test_common_lengths(length: int, data: st.DataObject) -> None:
    source, target = (cuts_of(data.draw(chunks_of(length))) for _ in range(2))
    expected = [
        [len(set(range(*t)) & set(range(*s))) for s in pairwise(source)] for t in pairwise(target)
    ]
    np.testing.assert_array_equal(common_lengths(source, target), np.array(expected, ndmin=2))


def test_spread_counts_common_elements() -> None:
    before, after = ((0, 2, 5), (0, 4)), ((0, 3, 5), (0, 1, 4))
    mine = np.array([[1.0], [0.0]])
    common = [common_lengths(*cuts).T for cuts in zip(before, after, strict=True)]
    np.testing.assert_array_equal(spread(mine, common), [[2, 6], [0, 0]])


@pytest.mark.parametrize(
    ("before", "after", "merged"),
    [
        (((12,), (3, 3)), ((3, 9), (6,)), 1.0),
        (((12,), (6,)), ((3, 9), (2, 4)), 0.0),
        (((4, 4, 4), (6,)), ((6, 6), (6,)), 1.0),
        (((4, 4, 4), (6,)), ((8, 4), (6,)), 2 / 3),
        (((4, 4, 4), (3, 3)), ((8, 4), (3, 3)), 2 / 3),
        (((4, 4, 4), (3, 3)), ((8, 4), (6,)), 1.0),
        (((0, 12), (6,)), ((12,), (6,)), 0.0),
        (((0,), (6,)), ((0, 0), (6,)), 1.0),
    ],
)
def test_share_of_merged_blocks(before: Any, after: Any, merged: float) -> None:
    assert Stage(before, after, 1).merged == pytest.approx(merged)


def test_dask_pays_for_the_tasks_it_would_run() -> None:
    (piece,) = rechunks(A.rechunk((3, 30)))
    tasks, seconds = piece.dask_cost(4, HOST)
    assert tasks == 4 + 4 * 6
    moved = A.nbytes * 3 / 4 / (HOST.dask_bandwidth * 4)
    copied = 2 * A.nbytes / (HOST.memory_bandwidth * 4)
    assert seconds == pytest.approx(tasks * HOST.task_seconds + moved + copied)
    half, _ = piece.restrict(frozenset({(0, 0), (1, 0)})).dask_cost(4, HOST)
    assert half == tasks // 2
    (piece,) = rechunks(A.rechunk((3, 5)))
    assert piece.dask_cost(4, HOST)[1] == pytest.approx(24 * 2 * HOST.task_seconds)  # nothing moves


def test_dasks_own_bandwidth() -> None:
    slow = Machine(flops=1, bandwidth=1e9, latency=0, memory_bandwidth=1e12, dask_bandwidth=1e6)
    assert dask_rechunk_seconds(0, 1e6, 0, 2, slow) == pytest.approx(0.25)
    assert dask_rechunk_seconds(0, 1e6, 0, 1, slow) == 0
    assert all(machine.dask_bandwidth < machine.bandwidth for machine in (HOST, CUDA))


def test_one_task_a_block_and_one() -> None:
    (piece,) = rechunks(A.T.rechunk((30, 3)))
    layer = layer_of(Region.of(piece))
    assert len(layer) == 6 + 1
    assert Region.of(piece).tasks == 6 + 4 + 1
    read = {key for task in layer.values() for key in task.dependencies if key[0] == A.name}
    assert read == {(A.name, 0, j) for j in range(6)}


def test_culling_keeps_what_is_wanted_and_what_it_reads() -> None:
    z = A.rechunk((3, 10))
    (piece,) = rechunks(z)
    layer, needed = PieceLayer(piece).cull({(z.name, 1, 2), (z.name, 2, 2)}, set())
    assert isinstance(layer, PieceLayer)
    assert len(layer.wanted) == len(layer.piece.computed)
    assert Region.of(layer.piece).tasks == 2 + 2 + 1
    assert set().union(*needed.values()) == {(A.name, 0, 4), (A.name, 0, 5)}
    other, _ = PieceLayer(piece).cull({(z.name, 1, 2)}, set())
    assert isinstance(other, PieceLayer)
    assert Region.of(other.piece).token != Region.of(layer.piece).token


(PIECE,) = rechunks(A.rechunk((3, 30)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"axes": (0, 0)}, "expected an order of 2 axes, got (0, 0)"),
        ({"axes": (1, 0)}, "expected shape"),
        ({"source": replace(PIECE.source, dtype="int8")}, "expected dtype int8, got float64"),
    ],
)
def test_faults(changes: Any, message: str) -> None:
    assert message in str(replace(PIECE, **changes).fault())


def test_every_block_is_made_of_all_it_overlaps() -> None:
    x = da.ones((4, 6), chunks=(2, 3))
    (piece,) = rechunks(x.rechunk((3, 2)))
    for index in cartesian(range(2), range(3)):
        (read,) = piece.restrict(frozenset({index})).staged
        assert len(read) == (2 if index[0] == 0 else 1) * (2 if index[1] == 1 else 1)
