"""Which runs wait for which blocks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dask_dgpu.runtime.scheduler.launch import Waiting


def run(name: str) -> Any:
    return SimpleNamespace(key=name)


def test_a_run_is_complete_with_its_last_block():
    waiting, first, second = Waiting(), run("first"), run("second")
    waiting.add(first, {"x", "y"})
    waiting.add(second, {"y"})
    assert "x" in waiting
    assert waiting.arrived("z") == []
    assert waiting.arrived("y") == [second]
    assert waiting.arrived("x") == [first]
    assert "x" not in waiting
    assert len(waiting) == 0


def test_a_run_that_misses_a_block_waits_for_no_other():
    waiting, first, second = Waiting(), run("first"), run("second")
    waiting.add(first, {"x", "y"})
    waiting.add(second, {"y"})
    assert waiting.missed("z") == []
    assert waiting.missed("x") == [first]
    assert waiting.arrived("y") == [second]
    assert len(waiting) == 0
    assert "y" not in waiting


def test_a_discarded_run_is_forgotten():
    waiting, first = Waiting(), run("first")
    waiting.add(first, {"x", "y"})
    waiting.discard(first)
    waiting.discard(first)
    assert len(waiting) == 0
    assert "x" not in waiting
