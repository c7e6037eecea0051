"""Which GPUs the processes of a test run have."""

from __future__ import annotations

import os

import pytest

from tests.support.gpus import VISIBLE, own, take_own


@pytest.mark.parametrize(
    ("share", "found"),
    [(1, ["4", "5", "6", "7", "4"]), (2, ["4,5", "6,7", "4,5"]), (3, ["4,5,6", "4,5,6"])],
)
def test_each_process_has_its_own(share: int, found: list[str]) -> None:
    assert [own(f"gw{at}", share, "4567") for at in range(len(found))] == found


def test_more_than_there_are() -> None:
    with pytest.raises(pytest.UsageError, match="--gpus of at most 1, got 2"):
        own("gw0", 2, ["0"])


def test_a_process_takes_of_those_that_are_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "2,5,1,7")
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw1")
    take_own(2)
    assert os.environ[VISIBLE] == "1,7"
    monkeypatch.delenv("PYTEST_XDIST_WORKER")  # the one process of a run without pytest-xdist
    take_own(1)
    assert os.environ[VISIBLE] == "1,7"
