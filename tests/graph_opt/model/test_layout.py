from __future__ import annotations

import pickle
from itertools import pairwise
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph_opt.model.layout import Layout, block_spans, cuts_of, even_spans, overlaps

sizes = st.lists(st.integers(0, 20), max_size=12)
parts = st.integers(1, 9)


@given(sizes)
def test_cuts_are_the_edges_of_the_chunks(chunks: list[int]) -> None:
    cuts = cuts_of(chunks)
    assert cuts[0] == 0
    assert [hi - lo for lo, hi in pairwise(cuts)] == chunks


@given(st.integers(0, 50), st.integers(0, 50), parts)
def test_even_spans_cover_and_differ_by_one(start: int, length: int, count: int) -> None:
    spans = even_spans(start, start + length, count)
    assert len(spans) == count
    assert [i for lo, hi in spans for i in range(lo, hi)] == list(range(start, start + length))
    lengths = [hi - lo for lo, hi in spans]
    assert max(lengths) - min(lengths) <= 1


@given(sizes, parts)
def test_block_spans_deal_every_chunk_once(chunks: list[int], count: int) -> None:
    spans = block_spans(cuts_of(chunks), count)
    assert len(spans) == count
    assert [i for lo, hi in spans for i in range(lo, hi)] == list(range(len(chunks)))


@given(st.integers(1, 20), st.integers(1, 9), parts)
def test_equal_chunks_are_dealt_evenly(size: int, each: int, count: int) -> None:
    spans = block_spans(cuts_of([size] * (each * count)), count)
    assert [hi - lo for lo, hi in spans] == [each] * count


@given(sizes, parts)
def test_block_spans_are_near_the_even_share(chunks: list[int], count: int) -> None:
    cuts = cuts_of(chunks)
    for lo, hi in block_spans(cuts, count):
        assert cuts[hi] - cuts[lo] <= cuts[-1] / count + max(chunks, default=0)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(1, 9))
def test_block_spans_are_cut_where_it_is_nearest(chunks: list[int], count: int) -> None:
    cuts, last = cuts_of(chunks), 0
    for part, (_, hi) in enumerate(block_spans(cuts, count)[:-1], start=1):
        far = [abs(cut - cuts[-1] * part / count) for cut in cuts]
        last = max(last, far.index(min(far)))
        assert hi == last or not cuts[-1]


def test_empty_chunks_are_dealt_too() -> None:
    assert block_spans(cuts_of([0] * 6), 3) == ((0, 2), (2, 4), (4, 6))
    assert block_spans((0,), 3) == ((0, 0),) * 3


@given(sizes, st.data())
def test_overlaps_cover_the_span(chunks: list[int], data: st.DataObject) -> None:
    cuts = cuts_of(chunks)
    start = data.draw(st.integers(0, cuts[-1]))
    stop = data.draw(st.integers(start, cuts[-1]))
    found = list(overlaps(cuts, start, stop))
    assert [i for _, lo, hi in found for i in range(lo, hi)] == list(range(start, stop))
    for chunk, lo, hi in found:
        assert cuts[chunk] <= lo < hi <= cuts[chunk + 1]


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    grid = draw(st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=4))
    blocks = prod(map(len, grid))
    owners = draw(st.lists(st.integers(-1, 3), min_size=blocks, max_size=blocks))
    return Layout(tuple(map(cuts_of, grid)), tuple(owners))


@given(layouts(), st.data())
def test_a_layout_knows_what_numpy_knows(layout: Layout, data: st.DataObject) -> None:
    owners = np.array(layout.owners, int).reshape(layout.grid)
    whole = np.empty(layout.shape, np.int16)
    assert (layout.ndim, layout.shape) == (whole.ndim, whole.shape)
    assert list(layout.indices()) == list(np.ndindex(owners.shape))
    share = dict.fromkeys(range(-1, 4), 0)
    for index in layout.indices():
        assert layout.owner(index) == owners[index]
        assert index in layout.owned(layout.owner(index))
        block = whole[tuple(slice(c[i], c[i + 1]) for c, i in zip(layout.cuts, index, strict=True))]
        assert layout.block_shape(index) == block.shape
        share[layout.owner(index)] += block.nbytes
    assert share == {rank: layout.share(rank, 2) for rank in share}
    axes = data.draw(st.permutations(range(layout.ndim)))
    turned = layout.transposed(axes)
    assert turned.shape == whole.transpose(axes).shape
    assert turned.owners == tuple(owners.transpose(axes).ravel().tolist())


@given(layouts())
def test_a_layout_is_a_value(layout: Layout) -> None:
    copy = pickle.loads(pickle.dumps(layout))
    assert copy == layout
    assert hash(copy) == hash(layout)


def test_wrong_layouts() -> None:
    with pytest.raises(ValueError, match=r"4 ranks for a grid of \(2, 2\), got 3"):
        Layout(((0, 1, 2), (0, 1, 2)), (0, 0, 0))
    with pytest.raises(ValueError, match=r"axes to order 2 axes, got \(0, 0\)"):
        Layout(((0, 1), (0, 1)), (0,)).transposed((0, 0))
