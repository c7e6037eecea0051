"""The block of an ``out`` task is known under any name of the task."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dask_dgpu.runtime import tasks
from dask_dgpu.runtime.scheduler.blocks import block_of
from graph_opt.dask_graph.internals import Task, TaskRef

BLOCK = ("sum-12ab-aggregate-3", 1, 2)


def out(name: str) -> Any:
    return Task((name, 1, 2), tasks.out, TaskRef("gang"), BLOCK)


def same(value: Any) -> Any:
    return value


def test_names_that_dask_and_the_optimizer_have_marked() -> None:
    for name in ("sum-12ab-aggregate-3", "sum-12ab-aggregate-3-0123abcd-4567"):
        assert block_of(SimpleNamespace(run_spec=out(name))) == BLOCK


def test_a_task_within_others() -> None:
    wrapped = Task("outer", same, Task("inner", same, out("sum")))
    assert block_of(SimpleNamespace(run_spec=wrapped)) == BLOCK
