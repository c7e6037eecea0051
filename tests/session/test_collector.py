"""The garbage collector's thresholds in a process with a scheduler."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from dask_dgpu.session.collector import LEAST, collect_less_often


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def test_raised_and_restored() -> None:
    restore = collect_less_often()
    assert gc.get_threshold() == LEAST
    restore()
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize(
    ("before", "raised"),
    [((0, 10, 10), (0, 30, 30)), ((9000, 10, 40), (9000, 30, 40)), ((2000, 10, 0), (2100, 30, 0))],
)
def test_never_lowered_nor_switched_on(
    before: tuple[int, int, int], raised: tuple[int, int, int]
) -> None:
    gc.set_threshold(*before)
    restore = collect_less_often()
    assert gc.get_threshold() == raised
    restore()
    assert gc.get_threshold() == before


def test_a_choice_of_the_user_stays() -> None:
    restore = collect_less_often()
    gc.set_threshold(5000, 7, 7)
    restore()
    assert gc.get_threshold() == (5000, 7, 7)


@pytest.mark.parametrize("first", [0, 1])
def test_two_at_once(first: int) -> None:
    restores = [collect_less_often(), collect_less_often()]
    restores[first]()
    restores[1 - first]()
    assert gc.get_threshold() == (700, 10, 10)
