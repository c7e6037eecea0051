"""When work is issued, recorded and sent again, on a device that only takes notes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pytest

from dask_dgpu.kernels.device.sequences import COPIED, MOST_ATTEMPTS, MOST_SEQUENCES, Sequences

Array = Any
KIB = 1024
LIMIT = 1 << 20
SMALL = int(COPIED * LIMIT)


class Noted:
    """A recording that knows which arrays it was made for."""

    nbytes = KIB

    def __init__(self, arrays: Sequence[Array], copied: Collection[int]) -> None:
        self.arrays, self.fixed, self.ended = (
            list(arrays),
            set(range(len(arrays))) - {*copied},
            False,
        )

    def end(self) -> None:
        self.ended = True


class Notes:
    """Records nothing, and remembers all recordings; some work it refuses."""

    def __init__(self) -> None:
        self.all: list[Noted] = []
        self.refuses = False

    def __call__(self, arrays: Sequence[Array], copied: Collection[int], work: Any) -> Any:
        if self.refuses:
            raise NotImplementedError("the host waits in it")
        self.all.append(Noted(arrays, copied))
        return self.all[-1]


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def sequences(notes: Notes) -> Any:
    return Sequences(notes, id)


def work(device: Any, arrays: list[Array]) -> None:
    raise AssertionError("only a recorder calls it")


def small() -> Array:
    return np.zeros(SMALL // 16)


def large() -> Array:
    return np.zeros(SMALL // 8 + 1)


def test_the_second_call_is_recorded_and_small_arrays_may_be_anywhere(
    sequences: Any, notes: Notes
) -> None:
    assert sequences.find("key", [small()], work, LIMIT) is None
    found = sequences.find("key", [small()], work, LIMIT)
    assert found is notes.all[0]
    assert sequences.find("key", [small()], work, LIMIT) is found
    assert (len(notes.all), len(sequences), sequences.nbytes) == (1, 1, Noted.nbytes)


def test_large_arrays_are_copied_once_they_have_moved(sequences: Any, notes: Notes) -> None:
    first, other = large(), large()
    for _ in range(3):
        found = sequences.find("key", [first, small()], work, LIMIT)
    assert [each.fixed for each in notes.all] == [{0}]
    moved = sequences.find("key", [other, small()], work, LIMIT)
    assert [each.fixed for each in notes.all] == [{0}, set()]
    assert found.ended
    assert moved is sequences.find("key", [first, small()], work, LIMIT)
    assert len(notes.all) == 2


def test_what_moves_between_the_first_calls_is_copied(sequences: Any, notes: Notes) -> None:
    fixed = large()
    for _ in range(4):
        arrays = [fixed, large()]
        found = sequences.find("key", arrays, work, LIMIT)
    assert [each.fixed for each in notes.all] == [{0}]
    assert found is notes.all[0]


@pytest.mark.parametrize("other", [np.zeros(3), np.zeros((2, 3)).T, np.zeros((2, 3), "float32")])
def test_blocks_of_another_kind_are_issued_first(
    sequences: Any, notes: Notes, other: Array
) -> None:
    array = np.zeros((2, 3))
    sequences.find("key", [array], work, LIMIT)
    assert sequences.find("key", [array], work, LIMIT) is not None
    assert sequences.find("key", [other], work, LIMIT) is None
    assert notes.all[0].ended
    assert sequences.find("key", [other], work, LIMIT) is notes.all[1]


def test_what_cannot_be_recorded_is_not_tried_again(sequences: Any, notes: Notes) -> None:
    notes.refuses = True
    for _ in range(2):
        assert sequences.find("key", [small()], work, LIMIT) is None
    notes.refuses = False
    assert sequences.find("key", [small()], work, LIMIT) is None
    assert not notes.all


def test_an_ended_recording_is_replaced_a_few_times(sequences: Any, notes: Notes) -> None:
    sequences.find("key", [small()], work, LIMIT)
    for at in range(MOST_ATTEMPTS):
        assert sequences.find("key", [small()], work, LIMIT) is notes.all[at]
        notes.all[at].ended = True
    assert sequences.find("key", [small()], work, LIMIT) is None
    assert len(notes.all) == MOST_ATTEMPTS


@pytest.mark.parametrize(("limit", "kept"), [(0, 0), (Noted.nbytes - 1, 0), (Noted.nbytes, 1)])
def test_the_limit_counts_all_recordings(
    sequences: Any, notes: Notes, limit: int, kept: int
) -> None:
    array = np.zeros(3)
    for key in ("first", "second"):
        for _ in range(3):
            sequences.find(key, [array], work, limit)
    assert len(sequences) == kept
    assert sequences.nbytes <= limit
    assert sum(not each.ended for each in notes.all) == kept
    assert len(notes.all) == (2 if limit else 0)


def test_no_more_keys_than_allowed(sequences: Any, notes: Notes) -> None:
    for key in range(MOST_SEQUENCES + 5):
        for _ in range(2):
            sequences.find(key, [small()], work, LIMIT)
    assert len(sequences) == MOST_SEQUENCES
    assert [each.ended for each in notes.all[:6]] == [True] * 5 + [False]


def test_all_are_forgotten(sequences: Any, notes: Notes) -> None:
    for _ in range(2):
        sequences.find("key", [small()], work, LIMIT)
    sequences.clear()
    assert notes.all[0].ended
    assert (len(sequences), sequences.nbytes) == (0, 0)
    assert sequences.find("key", [small()], work, LIMIT) is None
