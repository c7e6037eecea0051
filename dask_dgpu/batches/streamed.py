"""A graph as tasks that threads of this process compute, writing one block after another."""

from __future__ import annotations

from collections.abc import Collection
from threading import Lock
from typing import Any

from dask.array.core import Array
from dask.core import flatten
from dask.threaded import get

from dask_dgpu.batches.blocks import regions
from dask_dgpu.batches.held import Key, Tasks
from graph_opt.dask_graph.internals import GraphNode, Task, TaskRef, convert_legacy_graph
from graph_opt.passes import name_of


def tasks_of(result: Array) -> Tasks:
    """Return the tasks of an array, optimized as Dask is configured to."""
    keys = list(flatten(result.__dask_keys__()))
    tasks: Tasks = convert_legacy_graph(dict(result.__dask_optimize__(result.dask, keys)))
    return tasks


def read_again(tasks: Tasks, reads: Collection[str], wanted: Collection[Key]) -> Tasks:
    """Return tasks in which each reader of a block loads it itself, so that none is kept.

    ``reads`` are the names of arrays whose tasks load blocks.
    """
    loads = {key: task for key, task in tasks.items() if name_of(key) in reads}
    found = {key: loads[key] for key in wanted if key in loads}
    for key, task in tasks.items():
        if key not in loads:
            needed = [loads[each] for each in task.dependencies if each in loads]
            found[key] = Task.fuse(*needed, task, key=key) if needed else task
    return found


def write(tasks: Tasks, result: Array, out: Any, threads: int) -> None:
    """Compute the blocks of an array in threads and write each to its place, one at a time."""
    lock = Lock()

    def put(block: Any, region: Any) -> None:
        with lock:
            out[region] = block

    writes: dict[Key, GraphNode] = {
        ("write", *index): Task(("write", *index), put, TaskRef((result.name, *index)), region)
        for index, region in regions(result.chunks)
    }
    get(dict(tasks) | writes, list(writes), num_workers=threads)
