"""A graph as tasks that threads of this process compute, writing one block after another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from threading import Lock
from typing import Any

from dask.array.core import Array
from dask.core import flatten
from dask.order import order
from dask.threaded import get

from dask_dgpu.batches.blocks import largest_nbytes, regions
from graph_opt.dask_graph.internals import GraphNode, Task, TaskRef, convert_legacy_graph
from graph_opt.dask_graph.parse import parse
from graph_opt.model.layout import ArrayNode

Key = Any
Tasks = Mapping[Key, GraphNode]

MOMENTS = 3
"""Most numbers for each element of a partial reduction: count, sum, and sum of squares."""


def tasks_of(result: Array) -> Tasks:
    """Return the tasks of an array, optimized as Dask is configured to."""
    keys = list(flatten(result.__dask_keys__()))
    tasks: Tasks = convert_legacy_graph(dict(result.__dask_optimize__(result.dask, keys)))
    return tasks


def read_again(tasks: Tasks, reads: Collection[str], wanted: Collection[Key]) -> Tasks:
    """Return tasks in which each reader of a block loads it itself, so that none is kept.

    ``reads`` are the names of arrays whose tasks load blocks.
    """
    loads = {key: task for key, task in tasks.items() if _name(key) in reads}
    found = {key: loads[key] for key in wanted if key in loads}
    for key, task in tasks.items():
        if key not in loads:
            needed = [loads[each] for each in task.dependencies if each in loads]
            found[key] = Task.fuse(*needed, task, key=key) if needed else task
    return found


def bytes_held(tasks: Tasks, nbytes: Callable[[Key], int]) -> int:
    """Return the most bytes of blocks that wait for readers, in the order in which Dask computes.

    A block without readers is written and freed at once.
    """
    readers = Counter(each for task in tasks.values() for each in task.dependencies)
    priority = order(dict(tasks))
    held = most = 0
    for key in sorted(tasks, key=priority.__getitem__):
        for each in tasks[key].dependencies:
            readers[each] -= 1
            held -= 0 if readers[each] else nbytes(each)
        held += nbytes(key) if readers[key] else 0
        most = max(most, held)
    return most


def sizes_of(result: Array, views: Collection[str], block: int) -> Callable[[Key], int]:
    """Return a function of a key to the bytes of its block, an estimate if Dask declares none.

    Blocks of ``views`` are parts of arrays that exist. ``block`` are the bytes of an undeclared
    one; items of it share its memory.
    """
    arrays = parse(result.dask, result.__dask_keys__())

    def of(name: str) -> int:
        if name in views:
            return 0
        readers = arrays.dependents.get(name, set())
        if _is_partial(name) or (readers and all(map(_is_partial, readers))):
            return MOMENTS * max(_largest(arrays.node(each)) for each in readers or {name})
        if arrays.node(name) is None:
            return 0 if name.startswith("getitem-") else block
        return _largest(arrays.node(name))

    known = {name: of(name) for name in arrays.layers}
    return lambda key: known.get(_name(key), 0)


def write(tasks: Tasks, result: Array, out: Any) -> None:
    """Compute the blocks of an array and write each to its place, one at a time."""
    lock = Lock()

    def put(block: Any, region: Any) -> None:
        with lock:
            out[region] = block

    writes: dict[Key, GraphNode] = {
        ("write", *index): Task(("write", *index), put, TaskRef((result.name, *index)), region)
        for index, region in regions(result.chunks)
    }
    get(dict(tasks) | writes, list(writes))


def _name(key: Key) -> str:
    return str(key[0] if isinstance(key, tuple) else key)


def _is_partial(name: str) -> bool:
    return "-partial-" in name or "-aggregate-" in name


def _largest(node: ArrayNode | None) -> int:
    """Return the bytes of the largest block of an array, 0 if nobody knows."""
    return 0 if node is None else largest_nbytes(node.chunks, node.itemsize)
