"""A deadlock between Dask's profiler and threads that start or end; the end of a process."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from typing import Any

import pytest

from dask_dgpu.runtime import background


@pytest.fixture
def enabled_within(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Install the guard; return whether garbage collection was enabled in each guarded call."""
    seen: list[bool] = []
    original = background._current_frames

    def look() -> dict[int, Any]:
        seen.append(gc.isenabled())
        return original()

    monkeypatch.setattr(background, "AFFECTED", True)
    monkeypatch.setattr(background, "_current_frames", look)
    monkeypatch.setattr(sys, "_current_frames", original)
    background.guard_current_frames()
    background.guard_current_frames()
    return seen


def test_no_garbage_is_collected_while_frames_are_read(enabled_within: list[bool]) -> None:
    assert gc.isenabled()
    assert threading.get_ident() in sys._current_frames()
    assert enabled_within == [False]
    assert gc.isenabled()


def test_disabled_garbage_collection_stays_disabled(enabled_within: list[bool]) -> None:
    gc.disable()
    try:
        sys._current_frames()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_an_interpreter_without_the_deadlock_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = sys._current_frames
    monkeypatch.setattr(background, "AFFECTED", False)
    background.guard_current_frames()
    assert sys._current_frames is original


ENDING = """
import gc
from dask_dgpu.runtime.background import exit_quickly

class Cyclic:
    def __init__(self): self.own = self
    def __del__(self): print("found")

gc.disable()
cyclic = Cyclic()
"""


@pytest.mark.parametrize("quickly", [False, True])
def test_a_process_that_ends_searches_no_garbage(quickly: bool) -> None:
    program = ENDING + ("exit_quickly()\nexit_quickly()\n" if quickly else "")
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert ("found" in done.stdout) is not quickly
    assert not done.stderr
