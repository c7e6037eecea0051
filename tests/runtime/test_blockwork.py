"""Fused tasks: what Dask makes of them, in any shape, and let go of when nobody needs it."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from dask._task_spec import Alias, DataNode, Task, TaskRef, execute_graph
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.runtime.blockwork import run_fused


def total(*values: Any) -> Any:
    return sum(values, start=1)


@given(st.lists(st.lists(st.integers(0, 30), max_size=4), min_size=1, max_size=30))
def test_any_tasks_are_run_as_dask_runs_them(needs: list[list[int]]) -> None:
    """Task ``i`` needs some tasks before it, and blocks from outside."""
    names = ["block-0", "block-1"]
    keys = [*names, *(f"task-{i}" for i in range(len(needs)))]
    tasks: dict[str, Any] = {}
    for i, some in enumerate(needs):
        refs = [TaskRef(keys[k % (i + 2)]) for k in some]
        tasks[f"task-{i}"] = Task(f"task-{i}", total, *refs)
    last = f"task-{len(needs) - 1}"
    outside = {name: DataNode(name, value) for name, value in zip(names, (10, 100), strict=True)}
    wanted = execute_graph({**outside, **tasks}, keys=[last])[last]
    assert run_fused(tasks, last, names, 10, 100) == wanted


def test_aliases_and_long_chains() -> None:
    tasks: dict[str, Any] = {"0": Alias("0", "x")}
    tasks |= {str(i): Task(str(i), total, TaskRef(str(i - 1))) for i in range(1, 5000)}
    assert run_fused(tasks, "4999", ["x"], 0) == 4999


def test_what_is_made_is_let_go_of_after_its_last_use() -> None:
    alive: list[int] = []
    made: list[weakref.ref[Any]] = []

    def grown(block: Any) -> Any:
        result = block + 1
        made.append(weakref.ref(result))
        alive.append(sum(each() is not None for each in made))
        return result

    tasks = {"0": Task("0", grown, TaskRef("x"))}
    tasks |= {str(i): Task(str(i), grown, TaskRef(str(i - 1))) for i in range(1, 9)}
    assert (run_fused(tasks, "8", ["x"], np.zeros(3)) == 9).all()
    assert max(alive) == 2


def test_errors_are_those_of_the_task() -> None:
    def broken(_: Any) -> Any:
        raise ArithmeticError("no such number")

    tasks: Mapping[str, Any] = {"0": Task("0", broken, TaskRef("x"))}
    with pytest.raises(ArithmeticError, match="no such number"):
        run_fused(tasks, "0", ["x"], 1)
