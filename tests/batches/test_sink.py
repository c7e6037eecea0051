"""Where the blocks of results are written."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dask_dgpu.batches import sinks
from dask_dgpu.batches.notation import Notation, Tile
from dask_dgpu.batches.sinks import Sink, Sum

SUM = Notation(inputs=((0, 1),), output=(), sizes={0: 5, 1: 3})
PRODUCT = Notation(inputs=((0, 1), (1, 2)), output=(0, 2), sizes={0: 5, 1: 3, 2: 4})


def sink(notation: Notation, out: Any, *, in_place: bool = False) -> Sink:
    call: Any = SimpleNamespace(notation=notation, shape=out.shape, dtype=out.dtype)
    return Sink(call, out, in_place=in_place)


@pytest.mark.parametrize("in_place", [False, True])
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
def test_room_is_memory_of_the_result(
    notation: Notation,
    tile: Tile,
    region: tuple[slice, ...],
    wanted: tuple[slice, ...],
    in_place: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sinks, "LARGE", 9)
    out = np.zeros([notation.sizes[label] for label in notation.output if label is not None])
    expected = out.copy()
    expected[wanted] = 7
    to = sink(notation, out, in_place=in_place)
    room = to.room(tile)
    assert room is not None
    block = room(region)
    assert block.shape == expected[wanted].shape
    block[...] = 7
    assert to.is_writing is in_place
    np.testing.assert_array_equal(out, expected)
    to.write(tile, [(region, block)])
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("combine", ["add", "max", "min"])
def test_parts_of_a_reduction_in_different_blocks(combine: str) -> None:
    x = np.random.default_rng(0).random((4, 5))
    found = Sum((4,), x.dtype, combine)
    reduce = {"add": np.sum, "max": np.max, "min": np.min}[combine]
    for span, cuts in (((0, 2), (0, 4)), ((2, 4), (0, 2, 4)), ((4, 5), (0, 1, 4))):
        part = reduce(x[:, slice(*span)], axis=1)
        regions = [(slice(*each),) for each in pairwise(cuts)]
        found.add([(region, part[region]) for region in regions], 1.0)
    np.testing.assert_allclose(found.value(), reduce(x, axis=1))
