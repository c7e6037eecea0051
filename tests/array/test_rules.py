"""What the optimizer knows of the layers and functions that users make."""

from __future__ import annotations

from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import pytest

import dask_dgpu as dgpu
from graph_opt.dask_graph.functions import is_stateless
from graph_opt.model.cost import HOST
from graph_opt.pieces.fft import FftPiece
from graph_opt.pieces.stencil import StencilPiece
from tests.array.fuse.test_fuse import Array, Function, smooth
from tests.graph_opt.graphs import array, matches


def test_the_rules_know_their_layer_and_no_other() -> None:
    x = da.ones((16, 12), chunks=(4, 12))
    with dgpu.enable(local_ranks=3):
        transformed = da.fft.rfft2(x)
        along = da.fft.fft(x, axis=1)
    for y, kind in ((dgpu.stencil(x, iterations=3), StencilPiece), (transformed, FftPiece)):
        (piece,) = matches(y + 1).pieces
        assert isinstance(piece, kind)
        assert [node.name for node in piece.inputs] == [x.name]
        assert (piece.output.name, piece.output.chunks) == (y.name, y.chunks)
        assert piece.computed == tuple(np.ndindex(y.numblocks))
        assert piece.restrict(frozenset([(0, 0)])) == piece
        tasks, seconds = piece.dask_cost(4, HOST)
        assert tasks == pytest.approx(len(y.dask.layers[y.name]), rel=0.5)
        assert seconds > tasks * HOST.task_seconds
    assert matches(x + 1, along).pieces == ()


class Doubled:
    def __call__(self, x: Array) -> Array:
        return 2 * x

    @staticmethod
    def twice(x: Array) -> Array:
        return 2 * x


@pytest.mark.parametrize(
    ("function", "stays"),
    [
        pytest.param(lambda x: x + 1, True, id="sent with each graph"),
        pytest.param(smooth, False, id="of a module"),
        pytest.param(partial(smooth, scale=3), False, id="partial"),
        pytest.param(Doubled(), False, id="callable"),
        pytest.param(Doubled.twice, False, id="of a class"),
    ],
)
def test_a_function_of_a_module_may_be_another_one_later(function: Function, stays: bool) -> None:
    assert is_stateless(dgpu.fuse(function)) is stays


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return self is other

    def __call__(self, block: Any) -> Any:
        return block + 1


def test_block_functions_that_have_no_hash() -> None:
    x = array(8, 8).map_blocks(Unhashable(), dtype=float)
    assert len(matches(x @ x).pieces) == 1
