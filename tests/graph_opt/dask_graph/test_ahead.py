"""Reading ahead: tasks for the third part and later ones wait for the part before their own."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from dask import get

from graph_opt.dask_graph.emit import UnfusedTask, late, take_turn, waiting
from graph_opt.dask_graph.internals import Alias, DataNode, GraphNode, Task, TaskRef

Graph = dict[Any, GraphNode]
PARTS = 5


def refer(*keys: Any) -> list[TaskRef]:
    return [TaskRef(key) for key in keys]


def keys_of(name: str) -> list[tuple[Any, Any]]:
    """Return the keys of the ``gang`` and ``turn`` tasks of a collective."""
    turns = [None, *((f"dgpu-turn-{name}{k}", 0) for k in range(1, PARTS))]
    return [((f"dgpu-gang-{name}{k}", 0), turn) for k, turn in enumerate(turns)]


def collective(name: str, reads: list[list[Any]]) -> Graph:
    """Return the tasks of a collective with one result a part, the sum of what each reads."""
    tasks: list[GraphNode] = []
    for k, (gang, turn) in enumerate(keys_of(name)):
        if turn is not None:
            tasks.append(UnfusedTask(turn, take_turn, TaskRef((name, k - 1))))
        stages = [("dgpu-stage", name, k, at) for at in range(len(reads[k]))]
        for stage, read in zip(stages, reads[k], strict=True):
            tasks.append(UnfusedTask(stage, staged, *refer(read, *filter(None, [turn]))))
        tasks.append(UnfusedTask(gang, total, *refer(*stages)))
        tasks.append(UnfusedTask((name, k), staged, TaskRef(gang)))
    return {task.key: task for task in tasks}


def staged(block: int, turn: None = None) -> int:
    return block


def total(*blocks: int) -> int:
    return sum(blocks)


def sources(name: str, count: int = PARTS) -> Graph:
    data = DataNode(f"original-{name}", 10)
    tasks = [Task((name, at), total, TaskRef(data.key), at) for at in range(count)]
    return {task.key: task for task in (data, *tasks)}


class Found(NamedTuple):
    """What waits."""

    turns: dict[Any, Any]
    names: dict[Any, Any]


def applied(graph: Graph, found: Found) -> Graph:
    turns, names = found
    return {names.get(key, key): late(key, task, names, turns) for key, task in graph.items()}


def check(graph: Graph, *names: str, wanted: Any = ()) -> Found:
    """Check that the results stay, without cycles; return what waits."""
    found = Found(*waiting(graph, [keys_of(name) for name in names], {*wanted}))
    results = [(name, k) for name in names for k in range(PARTS)]
    assert get(applied(graph, found), results) == get(graph, results)
    return found


def test_sources_are_one_part_ahead() -> None:
    graph = sources("x") | collective("z", [[("x", k)] for k in range(PARTS)])
    found = check(graph, "z")
    turns = {("x", k): (f"dgpu-turn-z{k - 1}", 0) for k in range(2, PARTS)}
    assert found.turns == turns
    assert found.names == {("x", k): (f"x-z{k - 1}", k) for k in range(2, PARTS)}
    tasks = applied(graph, found)
    for key, turn in turns.items():
        assert tasks[found.names[key]].dependencies == {"original-x", turn}


def test_shared_sources_belong_to_the_first_part() -> None:
    reads = [[("x", k), ("x", k + 1)] for k in range(PARTS)]
    found = check(sources("x", PARTS + 1) | collective("z", reads), "z")
    assert found.turns == {("x", k + 1): (f"dgpu-turn-z{k - 1}", 0) for k in range(2, PARTS)}


def test_work_on_sources_gets_a_name_too() -> None:
    """Its dependencies differ from those of the same work without parts."""
    graph = sources("x") | collective("z", [[("y", k)] for k in range(PARTS)])
    graph |= {("y", k): Task(("y", k), total, TaskRef(("x", k)), 1) for k in range(PARTS)}
    found = check(graph, "z")
    assert found.turns.keys() == {("x", k) for k in range(2, PARTS)}
    assert found.names.keys() == {(name, k) for name in "xy" for k in range(2, PARTS)}


def test_requested_blocks_wait_for_nothing() -> None:
    graph = sources("x") | collective("z", [[("x", k)] for k in range(PARTS)])
    assert check(graph, "z", wanted={("x", 3)}).turns.keys() == {("x", 2), ("x", 4)}


def test_blocks_in_memory_wait_for_nothing() -> None:
    graph = collective("z", [[("x", k)] for k in range(PARTS)])
    graph |= {("x", k): Alias(("x", k), ("x", k)) for k in range(PARTS)}
    assert waiting(graph, [keys_of("z")], set()) == ({}, {})


def test_results_of_parts_are_used_at_once() -> None:
    """The sum of two terms takes less memory than both."""
    graph = sources("x", 2 * PARTS)
    graph |= collective("y", [[("x", 2 * k), ("x", 2 * k + 1)] for k in range(PARTS)])
    graph |= {("s", k): Task(("s", k), total, *refer(("y", k), ("y", k))) for k in range(PARTS)}
    graph |= collective("z", [[("s", k)] for k in range(PARTS)])
    assert check(graph, "y", "z").turns.keys() == {("x", at) for at in range(4, 2 * PARTS)}


@pytest.mark.parametrize("names", [("y", "z"), ("z", "y")])
def test_collectives_that_share_sources_do_not_wait_for_each_other(names: tuple[str, str]) -> None:
    graph = sources("x")
    graph |= collective("y", [[("x", k)] for k in range(PARTS)])
    graph |= collective("z", [[("x", PARTS - 1 - k)] for k in range(PARTS)])
    assert check(graph, *names).turns.keys() == {
        ("x", k if names[0] == "y" else PARTS - 1 - k) for k in range(2, PARTS)
    }


@pytest.mark.parametrize("names", [("y", "z"), ("z", "y")])
def test_a_collective_of_the_results_of_another(names: tuple[str, str]) -> None:
    graph = sources("x")
    graph |= collective("y", [[("x", k)] for k in range(PARTS)])
    graph |= collective("z", [[("y", PARTS - 1 - k), ("x", k)] for k in range(PARTS)])
    # the first part of the second reads the last of the first
    assert bool(check(graph, *names).turns) == (names[0] == "y")
