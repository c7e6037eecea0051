"""Transforms on clusters that are not there: the blocks of results, and what moves."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import pytest

import dask_dgpu as dgpu
from tests.support.clusters import explained

Lengths = tuple[int, ...]
SLAB, CUBE = (64, 64), (64, 64, 64)


def moved(y: da.Array, ranks: int) -> int:
    """Return the bytes that all ranks receive, if blocks are dealt out in their order."""
    predictions = [each for _, each in explained(y, workers=ranks, when="always").regions]
    return sum(dict(each.details)["total_bytes"] for each in predictions)


def zeros(shape: Lengths, parts: Lengths, dtype: str = "c16") -> da.Array:
    chunks = tuple(-(-length // count) for length, count in zip(shape, parts, strict=True))
    return da.zeros(shape, chunks=chunks, dtype=dtype)


@pytest.mark.parametrize(
    ("name", "x", "ranks", "options", "blocks", "nbytes"),
    [
        pytest.param("fft2", zeros(SLAB, (8, 1)), 8, {}, (1, 8), 64 * 64 * 14, id="slab"),
        pytest.param("fftn", zeros(CUBE, (8, 8, 1)), 64, {}, (1, 1, 64), 64**3 // 64 * 63 * 16),
        # axes that remain are too short for a slab: twice within a row or column of the mesh
        pytest.param("fftn", zeros((16,) * 3, (8, 8, 1)), 64, {}, (8, 1, 8), 2 * 16**3 * 14),
        pytest.param("fftn", zeros((16,) * 3, (8, 8, 1)), 8, {}, (8, 1, 8), 16**3 * 14),
        pytest.param(  # real numbers move, not complex ones
            "fftn",
            zeros((40, 32, 32), (1, 4, 1), "f8"),
            4,
            {"axes": (1, 2)},
            (4, 1, 1),
            40 * 32 * 32 * 6,
            id="batch",
        ),
        pytest.param("rfft2", zeros((32, 32), (4, 1), "f8"), 4, {}, (1, 4), 32 * 17 * 12),
        pytest.param("irfft2", zeros((32, 17), (1, 4)), 4, {}, (4, 1), 32 * 17 * 12),
        pytest.param(
            "fftn", zeros(SLAB, (8, 1)), 8, {"s": (16, 64), "axes": (0, 1)}, (1, 8), 16 * 64 * 14
        ),
        pytest.param(  # padded after the exchange, in which the first axis stays as it is
            "fftn",
            zeros(CUBE, (8, 8, 1)),
            64,
            {"s": (64, 256), "axes": (1, 2)},
            (64, 1, 1),
            64**3 * 14,
            id="padded",
        ),
        pytest.param("dctn", zeros(SLAB, (8, 1), "f4"), 8, {}, (1, 8), 64 * 64 * 4 * 7 // 8),
        pytest.param("dstn", zeros(SLAB, (8, 1), "f4"), 8, {}, (1, 8), 64 * 64 * 4 * 7 // 8),
    ],
)
def test_the_least_moves(
    name: str, x: da.Array, ranks: int, options: dict[str, Any], blocks: Lengths, nbytes: int
) -> None:
    y = getattr(dgpu.fft, name)(x, **options)
    assert y.numblocks == blocks
    assert moved(y, ranks) == nbytes


def test_cropped_blocks_in_place_move_nothing() -> None:
    x = da.zeros((12, 6), chunks=(4, 3), dtype="f4")
    y = dgpu.fft.fft(x, n=2)
    assert y.chunks == ((4, 4, 4), (2,))
    assert not explained(y, workers=6, when="always").regions


def test_there_and_back_needs_two_transposes() -> None:
    x = zeros((96, 96), (8, 1))
    there = dgpu.fft.fft2(x)
    back = dgpu.fft.ifft2(there)
    assert back.chunks == x.chunks
    once, twice = (
        explained(each, workers=8, when="always").regions[0][1] for each in (there, back)
    )
    assert twice.moved_bytes == 2 * once.moved_bytes


@pytest.mark.parametrize("name", ["rfft2", "dctn"])
def test_real_transforms_and_their_inverses(name: str) -> None:
    x = zeros((32, 32), (4, 1), "f8")
    there = getattr(dgpu.fft, name)(x)
    back = getattr(dgpu.fft, {"rfft2": "irfft2", "dctn": "idctn"}[name])(there)
    assert (back.chunks, back.dtype) == (x.chunks, x.dtype)


def test_output_in_the_chunks_of_the_input() -> None:
    x = zeros((30, 30), (7, 1))
    with dask.config.set({"dgpu.fft.output-layout": "input"}):
        assert dgpu.fft.fft2(x).chunks == x.chunks
        cropped = dgpu.fft.fft2(zeros((30, 31), (7, 3)), s=(5, 31))
    assert cropped.numblocks == (5, 3)
