"""What is chosen: cuts that fit and cost least, and batches that overlap with transfers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from dask_dgpu.batches import notation as choices
from dask_dgpu.batches.notation import Halo, Notation, choose, overlapping
from dask_dgpu.batches.sites import Here
from tests.support.memory import bounded
from tests.support.profiles import examples

PRODUCT = Notation(((0, 2), (2, 1)), (0, 1), {0: 1000, 1: 500, 2: 600})


def elements(notation: Notation, lengths: Any) -> int:
    return sum(
        int(np.prod([notation.longest(label, lengths) for label in axes]))
        for axes in (*notation.inputs, notation.output)
    )


@given(room=st.integers(3, 1_200_000))
@examples(30)
def test_choices_fit_and_cost_least(room: int) -> None:
    def memory(lengths: Any) -> int:
        return elements(PRODUCT, lengths)

    def cost(lengths: Any) -> int:
        return sum(PRODUCT.reads(at, (1, 1), lengths) for at in range(2)) * 1000 + memory(lengths)

    found = choose(PRODUCT, memory, cost, room)
    assert memory(found) <= room
    whole = {0: 1000, 1: 500, 2: 600}
    if memory(whole) > room and PRODUCT.batches(found) < 1000:
        tiles = list(PRODUCT.tiles(found))
        assert len(tiles) == PRODUCT.batches(found)
        cells = sum(np.prod([hi - lo for lo, hi in tile.values()]) for tile in tiles)
        assert cells == 1000 * 500 * 600
    if min(found.values()) > 1:  # none can be longer
        for label, length in found.items():
            longer = memory({**found, label: length + 1})
            assert length == whole[label] or longer > room


def test_nothing_fits() -> None:
    assert choose(PRODUCT, lambda lengths: 4, lambda lengths: 0, 3) == {0: 1, 1: 1, 2: 1}


@pytest.mark.parametrize(
    ("op", "shapes", "batches"),
    [
        ("matmul", [(16384, 16384)] * 2, 6),  # 3 GiB
        ("matmul", [(40, 16384), (16384, 16384)], 2),  # columns of the right operand
        ("add", [(32768, 65536)] * 2, 8),
        ("stencil", [(32768, 32768)], 8),  # each batch reads a row more on either side
        ("fft", [(8192, 65536)], 8),
        ("fft2", [(32768, 32768)], 1),  # there is no axis to cut
        ("sum", [(1 << 31,)], 1),
        ("matmul", [(8192, 8192)] * 2, 1),
    ],
)
def test_large_calls_that_fit_go_in_batches_if_transfers_overlap(
    op: str, shapes: list[tuple[int, ...]], batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bounded(1 << 50):
        one = dgpu.plan(op, *shapes, dtype="float32")
        monkeypatch.setattr(Here, "overlaps", True)
        several = dgpu.plan(op, *shapes, dtype="float32")
    assert (one.batches, several.batches) == (1, batches)
    assert one.host_bytes <= several.host_bytes <= choices.READ_AGAIN * one.host_bytes


def test_batches_that_overlap_fit() -> None:
    def traffic(lengths: Any) -> float:
        return float(4 << 30)

    def memory(lengths: Any) -> float:
        return 2.0 if lengths[0] < 1000 else 1.0

    assert overlapping(PRODUCT, memory, traffic, 2) == {0: 125, 1: 500, 2: 600}
    assert overlapping(PRODUCT, memory, traffic, 1) == {0: 1000, 1: 63, 2: 600}


@pytest.mark.parametrize("n", [1, 7, 100])
def test_batches_that_overlap_are_right(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Here, "overlaps", True)
    monkeypatch.setattr(choices, "LEAST_TRAFFIC", 1 << 10)
    a, b = np.random.default_rng(n).random((2, n, n))
    np.testing.assert_allclose(dgpu.run("matmul", a, b), a @ b, rtol=1e-12)
    np.testing.assert_array_equal(dgpu.run("add", a, b.T), a + b.T)
    np.testing.assert_allclose(dgpu.run("fft", a, axis=0), np.fft.fft(a, axis=0), atol=1e-12 * n)
    np.testing.assert_allclose(dgpu.run("mean", a, axis=1), a.mean(axis=1), rtol=1e-12)


def test_four_axes_are_cut_along_the_last_one_least() -> None:
    x = np.random.default_rng(0).random((5, 6, 7, 8))
    with bounded(1):
        least = dgpu.plan("exp", x).peak_bytes
    with bounded(least + 40):
        assert list(dgpu.plan("exp", x).cuts.values()) == [1, 1, 1, 2]
        np.testing.assert_array_equal(dgpu.run("exp", x, progress=False), np.exp(x))


def test_halos_are_read_and_trimmed() -> None:
    notation = Notation(((0,),), (0,), {0: 10}, halos={0: Halo(3, 3)})
    tiles = list(notation.tiles({0: 4}))
    assert [notation.read_spans(0, (10,), tile)[0] for tile in tiles] == [(0, 6), (0, 9), (3, 10)]
    trims = [notation.trims((10,), tile)[0] for tile in tiles]
    assert trims == [slice(0, 3), slice(3, 6), slice(3, 7)]
