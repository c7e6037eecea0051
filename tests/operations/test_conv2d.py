"""Where convolutions are computed, and what ranks receive for it."""

from __future__ import annotations

from math import prod

from dask_dgpu.operations import OPERATIONS
from dask_dgpu.operations.operation import Cost, Placed, Request, Value
from graph_opt.model.cost import HOST
from graph_opt.model.layout import Layout, dealt, even_spans
from graph_opt.model.window import Convolution, Sliding

CONV2D = OPERATIONS["conv2d"]
SAME = Convolution((Sliding(3, padding=(1, 1)), Sliding(3, padding=(1, 1))))


def layout_of(shape: tuple[int, ...], parts: tuple[int, ...], size: int) -> Layout:
    spans = (even_spans(0, length, count) for length, count in zip(shape, parts, strict=True))
    cuts = tuple((0, *(stop for _, stop in along)) for along in spans)
    return Layout(cuts, dealt(prod(parts), size))


def cost(shape: tuple[int, ...], parts: tuple[int, ...]) -> Cost:
    """Plan a convolution of 3 x 3 on even blocks of four ranks; rank 0 has the weights."""
    weight = (shape[1], shape[1], 3, 3)
    images = layout_of(shape, parts, 4)
    inputs = tuple(
        Placed(layout, "float64")
        for layout in (images, Layout(tuple((0, n) for n in weight), (0,)))
    )
    result = Value(SAME.result_cuts(images.cuts, shape[1]), "float64")
    return CONV2D.cost(CONV2D.plan(Request(inputs, result, SAME, 4, HOST, None)), HOST)


def test_whole_images_stay_where_they_are() -> None:
    found = cost((8, 4, 32, 32), (8, 1, 1, 1))
    assert found.moved_bytes == 4 * 4 * 9 * 8  # the weights
    assert "by images in 8 tiles" in found.text


def test_a_large_image_sends_its_halos() -> None:
    found = cost((1, 2, 64, 32), (1, 1, 4, 1))
    row, weight = 2 * 32 * 8, 2 * 2 * 9 * 8
    assert found.moved_bytes == 2 * row + weight
    assert "by space in 4 tiles" in found.text


def test_fewer_blocks_than_ranks_are_divided_if_that_pays() -> None:
    assert "by space" in cost((1, 512, 64, 64), (1, 1, 1, 1)).text
    assert "by images" in cost((8, 512, 32, 32), (1, 1, 1, 1)).text
    assert "on one rank" in cost((1, 1, 8, 8), (1, 1, 1, 1)).text
