"""Where the blocks of results are written."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from dask_dgpu.batches.notation import Combine, Notation, Tile
from dask_dgpu.batches.sink import Sink

SUM = Notation(inputs=((0, 1),), output=(), sizes={0: 5, 1: 3})
PRODUCT = Notation(inputs=((0, 1), (1, 2)), output=(0, 2), sizes={0: 5, 1: 3, 2: 4})


@pytest.mark.parametrize(
    ("notation", "tile", "region", "wanted"),
    [
        (SUM, {0: (0, 5), 1: (0, 3)}, (), ()),
        (
            PRODUCT,
            {0: (2, 5), 1: (0, 3), 2: (0, 4)},
            (slice(1, 3), slice(0, 4)),
            (slice(3, 5), slice(0, 4)),
        ),
    ],
    ids=["number", "part"],
)
def test_room_is_the_memory_of_a_new_result(
    notation: Notation, tile: Tile, region: tuple[slice, ...], wanted: tuple[slice, ...]
) -> None:
    out = np.zeros([notation.sizes[label] for label in notation.output if label is not None])
    expected = out.copy()
    expected[wanted] = 7
    room = Sink(notation, out.shape, out.dtype, out, None, new=True).room(tile)
    assert room is not None
    block = room(region)
    assert block.shape == expected[wanted].shape
    block[...] = 7
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize(
    ("tile", "new"), [({0: (0, 5), 1: (0, 2)}, True), ({0: (0, 5), 1: (0, 3)}, False)]
)
def test_no_room_for_parts_of_sums_or_in_a_users_array(tile: Tile, new: bool) -> None:
    out = np.zeros(())
    assert Sink(SUM, out.shape, out.dtype, out, None, new=new).room(tile) is None


@pytest.mark.parametrize("combine", ["add", "max", "min"])
def test_parts_of_a_reduction_in_different_blocks(combine: Combine) -> None:
    x = np.random.default_rng(0).random((4, 5))
    notation = Notation(inputs=((0, 1),), output=(0,), sizes={0: 4, 1: 5}, combine=combine)
    out = np.zeros(4)
    sink = Sink(notation, out.shape, out.dtype, out, None, new=True)
    reduce = {"add": np.sum, "max": np.max, "min": np.min}[combine]
    for span, cuts in (((0, 2), (0, 4)), ((2, 4), (0, 2, 4)), ((4, 5), (0, 1, 4))):
        part = reduce(x[:, slice(*span)], axis=1)
        regions = [(slice(*each),) for each in pairwise(cuts)]
        sink.add({0: (0, 4), 1: span}, [(region, part[region]) for region in regions])
    sink.finish()
    np.testing.assert_allclose(out, reduce(x, axis=1))
