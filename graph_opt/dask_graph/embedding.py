"""Blocks of data within the ``stage`` tasks that read them: one key and one task fewer a block.

::

    before      block  ->  stage  ->  gang
    after                  stage  ->  gang

Dask's fusion does so for its own tasks, and skips ``stage`` tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from graph_opt.dask_graph.emit import UnfusedTask, is_stage
from graph_opt.dask_graph.internals import DataNode, GraphNode, TaskRef

Key = Any


def embedded(
    graph: Mapping[Key, GraphNode],
    wanted: AbstractSet[Key],
    exist: Callable[[Collection[Key]], Collection[Key]],
) -> dict[Key, GraphNode]:
    """Return a graph with blocks of data as arguments of the ``stage`` tasks that read them.

    Blocks stay that another task reads too, that are ``wanted``, or that ``exist`` on a worker: a
    gang may begin on these at once.
    """
    stages: dict[Key, Key] = {}
    for key, task in graph.items():
        if is_stage(key) and type(task) is UnfusedTask and isinstance(task.args[0], TaskRef):
            read = task.args[0].key
            if type(graph.get(read)) is DataNode and read not in wanted:
                stages[read] = key
    if not stages:
        return dict(graph)
    readers = Counter(read for task in graph.values() for read in task.dependencies)
    existing = exist(stages)
    alone = {read for read in stages if readers[read] == 1 and read not in existing}
    found = {key: task for key, task in graph.items() if key not in alone}
    for read in alone:
        task = found[stages[read]]
        data, others = graph[read].value, task.args[1:]
        found[task.key] = UnfusedTask(task.key, task.func, data, *others)
    return found
