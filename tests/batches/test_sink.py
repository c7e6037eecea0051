"""Where the blocks of results are written."""

from __future__ import annotations

import numpy as np
import pytest

from dask_dgpu.batches.notation import Notation, Tile
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
