"""Where the blocks of a redistributed array go."""

from __future__ import annotations

from itertools import pairwise
from itertools import product as cartesian
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.operations.operation import Value, place
from graph_opt.model.layout import Cuts, Layout, cuts_of, dealt


@st.composite
def cuts(draw: st.DrawFn, length: int) -> Cuts:
    edges = draw(st.lists(st.integers(0, length), max_size=5))
    return (0, *sorted(edges), length)


def sizes(layout: Layout, size: int) -> list[int]:
    return [layout.share(rank, 1) for rank in range(size)]


@given(st.data(), st.integers(1, 7))
def test_every_wanted_block_has_a_rank_and_no_rank_too_much(data: st.DataObject, size: int) -> None:
    shape = data.draw(st.lists(st.sampled_from([0, 1, 2, 7, 12]), min_size=1, max_size=3))
    before, after = (tuple(data.draw(cuts(length)) for length in shape) for _ in range(2))
    blocks = prod(len(axis) - 1 for axis in before)
    owners = data.draw(st.lists(st.integers(0, size - 1), min_size=blocks, max_size=blocks))
    everything = list(cartesian(*(range(len(axis) - 1) for axis in after)))
    wanted = tuple(sorted(data.draw(st.sets(st.sampled_from(everything)))))
    value = Value(after, "float64", data.draw(st.sampled_from([None, wanted])))
    source = Layout(before, tuple(owners))
    layout = place(source, value, size)
    assert layout.cuts == after
    for index in layout.indices():
        assert (layout.owner(index) >= 0) == (index in value.indices())
    assert layout == place(source, value, size)
    largest = max((prod(layout.block_shape(index)) for index in value.indices()), default=0)
    loads = sizes(layout, size)
    assert max(loads) <= sum(loads) / size + 2 * largest


def test_rows_to_columns_are_dealt_out_in_order() -> None:
    rows, columns = cuts_of((3,) * 12), cuts_of((4,) * 9)
    source = Layout((rows, (0, 36)), dealt(12, 3))
    layout = place(source, Value(((0, 36), columns), "float64"), 3)
    assert layout.owners == (0, 0, 0, 1, 1, 1, 2, 2, 2)


def test_blocks_stay_where_their_elements_are() -> None:
    """Pairs of blocks are merged, and each pair is on one rank already."""
    source = Layout((cuts_of((2,) * 8),), (3, 3, 1, 1, 0, 0, 2, 2))
    layout = place(source, Value((cuts_of((4,) * 4),), "float64"), 4)
    assert layout.owners == (3, 1, 0, 2)
    halves = place(source, Value((cuts_of((1,) * 16),), "float64"), 4)
    assert halves.owners == tuple(owner for owner in source.owners for _ in range(2))


def test_a_rank_that_has_everything_gives_away_all_but_its_share() -> None:
    source = Layout((cuts_of((2,) * 8),), (2,) * 8)
    layout = place(source, Value((cuts_of((1,) * 16),), "float64"), 4)
    assert sizes(layout, 4) == [4, 4, 4, 4]


@pytest.mark.parametrize("size", [1, 3, 5])
def test_empty_blocks_are_spread_too(size: int) -> None:
    layout = place(Layout(((0, 0), (0, 4)), (0,)), Value(((0,) * 11, (0, 4)), "float64"), size)
    counts = np.bincount(layout.owners, minlength=size)
    assert counts.max() - counts.min() <= 1


def test_more_of_its_own_than_in_any_dealing_of_equal_loads() -> None:
    rng = np.random.default_rng(0)
    before, after = (cuts_of((3,) * 8), cuts_of((6,) * 4)), (cuts_of((2,) * 12), cuts_of((4,) * 6))
    source = Layout(before, tuple(int(rank) for rank in rng.permutation(dealt(32, 4))))
    layout = place(source, Value(after, "float64"), 4)
    assert own(source, layout) > own(source, Layout(after, dealt(72, 4)))


def own(source: Layout, target: Layout) -> int:
    """Elements that stay on their rank."""
    shape = source.shape
    ranks: list[Any] = []
    for layout in (source, target):
        array = np.empty(shape, int)
        for index, owner in zip(layout.indices(), layout.owners, strict=True):
            spans = [list(pairwise(axis))[at] for axis, at in zip(layout.cuts, index, strict=True)]
            array[tuple(slice(*span) for span in spans)] = owner
        ranks.append(array)
    return int((ranks[0] == ranks[1]).sum())
