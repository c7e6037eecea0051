"""Small tasks of a layer that depend on each other become one."""

from __future__ import annotations

from operator import add, getitem
from typing import Any

import cloudpickle
import numpy as np
import pytest

from graph_opt.dask_graph import gathering
from graph_opt.dask_graph.gathering import Together, gathered
from graph_opt.dask_graph.internals import Alias, Task, TaskRef

LIMIT = 10
SIZES = {("x", 0): 100, ("x", 1): 100, ("x", 2): 100}


def chain() -> dict[Any, Any]:
    """Return a running sum of three blocks: totals of their last elements, and results."""
    tasks: dict[Any, Any] = {"t0": Task("t0", float, 0.0)}
    for at in (1, 2):
        last = Task(None, getitem, TaskRef(("x", at - 1)), -1)
        tasks[f"t{at}"] = Task(f"t{at}", add, TaskRef(f"t{at - 1}"), last)
    for at in range(3):
        tasks["y", at] = Task(("y", at), add, TaskRef(f"t{at}"), TaskRef(("x", at)))
    return tasks


def size(argument: Any) -> float:
    if isinstance(argument, Task):
        return 8 if argument.func is getitem else 100
    return SIZES.get(argument, 8)


def computed(tasks: dict[Any, Any], blocks: dict[Any, Any]) -> dict[Any, Any]:
    known, waiting = dict(blocks), dict(tasks)
    while waiting:
        ready = [key for key, task in waiting.items() if task.dependencies <= known.keys()]
        for key in ready:
            task = waiting.pop(key)
            known[key] = task({need: known[need] for need in task.dependencies})
    return known


BLOCKS = {("x", at): np.arange(3.0) + at for at in range(3)}
RESULTS = {("y", at) for at in range(3)}


def test_a_chain_is_one_task_of_slices() -> None:
    tasks = gathered(chain(), RESULTS, size, LIMIT)
    assert tasks.keys() == RESULTS | {("together", 0), ("part", 0), ("part", 1)}
    assert tasks["together", 0].dependencies == {("part", 0), ("part", 1)}
    together = tasks["together", 0].func
    assert isinstance(together, Together)
    assert together.wanted == ("t0", "t1", "t2")
    assert cloudpickle.loads(cloudpickle.dumps(together)).wanted == together.wanted
    found, wanted = computed(tasks, BLOCKS), computed(chain(), BLOCKS)
    for key in RESULTS:
        np.testing.assert_array_equal(found[key], wanted[key], strict=True)


def test_large_tasks_stay() -> None:
    tasks = chain()
    assert gathered(tasks, RESULTS, size, 4) == tasks
    assert gathered(tasks, {*RESULTS, "t1"}, size, LIMIT) == tasks  # others need it as it is


def test_many_bytes_do_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "MOST_GATHERED", 15)
    assert gathered(chain(), RESULTS, size, LIMIT) == chain()
    monkeypatch.setattr(gathering, "MOST_GATHERED", 16)
    assert ("together", 0) in gathered(chain(), RESULTS, size, LIMIT)


def test_a_group_has_no_path_out_and_back() -> None:
    """``b`` is large, so ``a`` and ``c`` cannot be one task that ``b`` reads and is read by."""
    tasks = {
        "a": Task("a", add, TaskRef("p"), 1),
        "b": Task("b", add, TaskRef("a"), TaskRef(("x", 0))),
        "s": Task("s", add, TaskRef("a"), 1),
        "c": Task("c", add, TaskRef("s"), TaskRef("q")),
        "q": Task("q", getitem, TaskRef("b"), 0),
        ("y", 0): Alias(("y", 0), target="c"),
    }

    def bytes_of(argument: Any) -> float:
        return 100 if argument in ("b", ("x", 0)) else 8

    blocks = {"p": 1.0, ("x", 0): np.ones(3)}
    found = gathered(tasks, {("y", 0)}, bytes_of, LIMIT)
    together = [
        task.func.wanted
        for task in found.values()
        if isinstance(task, Task) and isinstance(task.func, Together)
    ]
    assert together == [("a", "s")]
    assert computed(found, blocks)["y", 0] == computed(tasks, blocks)["y", 0]
