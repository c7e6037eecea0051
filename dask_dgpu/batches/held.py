"""The tasks of a graph, and one rule for its memory: blocks that wait, and tasks at work."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from heapq import nlargest
from itertools import accumulate
from math import isfinite, prod
from operator import getitem
from threading import Lock
from typing import Any

import numpy as np
from dask.array.core import Array
from dask.core import flatten
from dask.order import order
from dask.threaded import get

from dask_dgpu.batches.sources import Region, regions
from dask_dgpu.runtime import tasks as gangs
from graph_opt.dask_graph.internals import (
    Alias,
    DataNode,
    GraphNode,
    Task,
    TaskRef,
    _execute_subgraph,
    convert_legacy_graph,
    moment_chunk,
)
from graph_opt.dask_graph.layers import DeferredLayer
from graph_opt.passes import name_of

Key = Any
Tasks = Mapping[Key, GraphNode]
Put = Callable[[Region, Any], None]

TEMPORARIES = 2.0
"""Blocks that a function allocates beside its result, unless the user declares another number."""
DOUBLE = 8
"""Least bytes of an element that is computed: NumPy adds squares of float32 in double precision."""
BYTES_PER_TASK = 7000
"""Bytes of Dask's objects for a task in a graph, its optimized copy, and the scheduler."""
USUAL_GRAPH = 16 << 20
"""Bytes of these objects that count to the process, not to the computation."""
STEPS = ("-partial-", "-aggregate-")
"""In names of a reduction's steps; Dask declares for a partial result the size of what it reads."""
MOMENTS = 3
"""Most numbers of a partial result for each element: count, sum, and sum of squares."""
COPIES = ("topk", "argtopk")
"""Reductions whose partial results are parts of a copy of what they read, and keep it."""

VIEWS = (getitem, gangs.stage, gangs.out)
"""Functions of tasks whose result is a part of what they read, which it keeps."""


@dataclass(frozen=True)
class Held:
    """The bytes of blocks that wait for later tasks, of tasks at work, and of many tasks."""

    waiting: int = 0
    at_work: int = 0
    graph: int = 0

    @property
    def nbytes(self) -> int:
        """All of them."""
        return self.waiting + self.at_work + self.graph


def held(
    tasks: Tasks,
    result: Array,
    threads: int,
    usual: int,
    temporaries: float = TEMPORARIES,
    loading: int = 0,
    again: Collection[str] = (),
) -> Held:
    """Return what ``threads`` hold while they compute the tasks of an array.

    The largest tasks are at work at once. Each counts its inputs, its output, and ``temporaries``
    times its largest block, or ``loading`` bytes if these are more. Inputs are at least ``usual``
    bytes, those of blocks of the operands, which may be loaded by the task itself. To these come
    the blocks that wait for later tasks, in Dask's order. A block whose size Dask does not declare
    has the bytes of all inputs. Blocks of the arrays ``again`` are loaded by each task that reads
    them, and never wait.
    """
    declared = _Declared(result)
    ordered = sorted(tasks, key=order(dict(tasks)).__getitem__)
    owners: dict[Key, Key] = {}
    reads: dict[Key, set[Key]] = {}
    last: dict[Key, int] = {}
    numbers: dict[Key, int] = {}
    for i, key in enumerate(ordered):
        viewed = _viewed(tasks[key])
        if viewed is not None:
            owners[key] = owners.get(viewed, viewed)
        reads[key] = {owners.get(dependency, dependency) for dependency in tasks[key].dependencies}
        last |= dict.fromkeys(reads[key], i)
        if any(step in _name(key) for step in STEPS):
            numbers |= dict.fromkeys(reads[key], MOMENTS * (declared.nbytes(key) or 0))
    made: dict[Key, int] = {}
    works, changes = [0], [0] * (len(tasks) + 1)
    for i, key in enumerate(ordered):
        if key in owners or isinstance(tasks[key], DataNode):
            continue
        inputs = [made.get(each, 0) for each in reads[key]]
        read = max(sum(inputs), usual)
        *between, block = _fused(key, tasks[key])
        own, wide = (declared.nbytes(block, least) or read for least in (1, DOUBLE))
        element = DOUBLE if _adds_squares(tasks[key]) else 1
        others = (*between, *tasks[key].dependencies)
        largest = max(
            wide, usual, *inputs, *(declared.nbytes(other, element) or 0 for other in others)
        )
        beside = max(int(temporaries * largest), loading)
        works.append(read + wide + beside)
        made[key] = own if _name(key).startswith(COPIES) else min(own, numbers.get(key, own))
        if name_of(key) not in again:
            changes[i] += made[key]
            changes[last.get(key, i)] -= made[key]
    waiting, at_work = max(accumulate(changes)), sum(nlargest(threads, works))
    return Held(waiting, at_work, max(0, len(tasks) * BYTES_PER_TASK - USUAL_GRAPH))


class _Declared:
    """The blocks of a graph, as Dask declares them."""

    def __init__(self, result: Array) -> None:
        layers = dict(result.dask.layers)
        for layer in result.dask.layers.values():
            if isinstance(layer, DeferredLayer):  # an operation of our own, as plain Dask
                layers |= layer.expanded.dask.layers
        self._facts = {name: layer.collection_annotations for name, layer in layers.items()}

    def nbytes(self, key: Key, least: int = 1) -> int | None:
        """Return the bytes of a block, ``None`` if they are unknown.

        Without an index they are those of the largest block of the array. An element counts at
        ``least`` so many.
        """
        facts = self._facts.get(_name(key))
        if not facts or facts.get("type") != "dask.array.core.Array":
            return None
        index = (*(key[1:] if isinstance(key, tuple) else ()), *[None] * len(facts["chunks"]))
        count = prod(
            sizes[at] if isinstance(at, int) and at < len(sizes) else max(sizes, default=0)
            for sizes, at in zip(facts["chunks"], index, strict=False)
        )
        itemsize = max(least, np.dtype(facts["dtype"]).itemsize)
        return int(count) * itemsize if isfinite(count) else None


def _fused(key: Key, task: GraphNode) -> list[Key]:
    """Return the keys of the tasks that were fused to one, that of its result last."""
    if getattr(task, "func", None) is not _execute_subgraph:
        return [key]
    return [*(each for inner in task.args[0].items() for each in _fused(*inner)), task.args[1]]


def _adds_squares(task: GraphNode) -> bool:
    """Whether a task, or one that was fused to it, adds squares of differences from a mean."""
    function = getattr(task, "func", None)
    if function is _execute_subgraph:
        return any(map(_adds_squares, task.args[0].values()))
    return getattr(function, "func", function) is moment_chunk


def _viewed(task: GraphNode) -> Key | None:
    """Return the key of the block that a task returns, or slices."""
    if isinstance(task, Alias):
        return task.target
    is_view = getattr(task, "func", None) in VIEWS and isinstance(task.args[0], TaskRef)
    return task.args[0].key if is_view else None


def _name(key: Key) -> str:
    """Return the name of the array of a key; Dask appends axes to those of fused blocks."""
    return name_of(key).partition("_.")[0]


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
    kept = {key: loads[key] for key in wanted if key in loads}
    for key, task in tasks.items():
        if key not in loads:
            needed = [loads[dependency] for dependency in task.dependencies if dependency in loads]
            kept[key] = Task.fuse(*needed, task, key=key) if needed else task
    return kept


def write(tasks: Tasks, result: Array, put: Put, threads: int) -> None:
    """Compute the blocks of an array in threads, and ``put`` each to its place, one at a time."""
    lock = Lock()

    def put_alone(block: Any, region: Region) -> None:
        with lock:
            put(region, block)

    writes: dict[Key, GraphNode] = {
        ("write", *index): Task(
            ("write", *index), put_alone, TaskRef((result.name, *index)), region
        )
        for index, region in regions(result.chunks)
    }
    get(dict(tasks) | writes, list(writes), num_workers=threads)
