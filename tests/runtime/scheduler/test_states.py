"""What gangs use of Dask's scheduler that is private to it, in the installed version."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distributed.scheduler import Scheduler, TaskState, WorkerState

import dask_dgpu.runtime.scheduler as package
from dask_dgpu.runtime import tasks
from dask_dgpu.runtime.scheduler import states
from graph_opt.dask_graph.internals import Task, TaskRef

BLOCK = ("sum-12ab-aggregate-3", 1, 2)

METHODS = {
    "_add_to_processing": ["ts", "ws", "stimulus_id"],
    "_transition": ["key", "finish", "stimulus_id", "kwargs"],
    "_transitions": ["recommendations", "client_msgs", "worker_msgs", "stimulus_id"],
    "handle_task_erred": ["key", "stimulus_id", "msg"],
    "send_all": ["client_msgs", "worker_msgs"],
    "set_restrictions": ["worker"],
    "stimulus_queue_slots_maybe_opened": ["stimulus_id"],
    "transitions": ["recommendations", "stimulus_id"],
    "valid_workers": ["ts"],
    "worker_send": ["worker", "msg"],
}
TASK = (  # besides ``state``, a property
    "dependencies dependents exception exception_blame exception_text loose_restrictions "
    "processing_on run_id run_spec waiters waiting_on who_has who_wants"
)


@pytest.mark.parametrize("name", METHODS)
def test_methods_of_the_scheduler(name: str) -> None:
    _, *found = inspect.signature(getattr(Scheduler, name)).parameters
    assert found == METHODS[name]


def test_attributes_of_tasks_and_workers() -> None:
    assert set(TASK.split()) <= set(TaskState.__slots__)
    assert {"has_what", "processing", "status"} <= set(dir(WorkerState))


def private_names(path: Path) -> set[str]:
    """Return what a file uses of a scheduler that is private, or moves tasks."""
    nodes = ast.walk(ast.parse(path.read_text()))
    found = {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith("scheduler")
    }
    moving = {"transitions", "stimulus_queue_slots_maybe_opened"}
    return {name for name in found if name.startswith("_") or name in moving}


def test_one_file_uses_what_is_private_to_the_scheduler() -> None:
    for path in Path(package.__file__).parent.glob("*.py"):
        named = METHODS if path.name == Path(states.__file__).name else ()
        assert private_names(path) <= {*named}, path


def out(name: str) -> Any:
    return Task((name, 1, 2), tasks.out, TaskRef("gang"), BLOCK)


def same(value: Any) -> Any:
    return value


def test_the_block_of_an_out_is_known_under_any_name_of_the_task() -> None:
    for name in ("sum-12ab-aggregate-3", "sum-12ab-aggregate-3-0123abcd-4567"):
        assert states.block_of(SimpleNamespace(run_spec=out(name))) == BLOCK  # type: ignore[arg-type]


def test_a_task_within_others() -> None:
    wrapped = Task("outer", same, Task("inner", same, out("sum")))
    assert states.block_of(SimpleNamespace(run_spec=wrapped)) == BLOCK  # type: ignore[arg-type]
