"""One rule for the memory of a graph: blocks that wait, and those of the tasks at work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import nlargest
from itertools import accumulate
from math import isfinite, prod
from operator import getitem
from typing import Any

import numpy as np
from dask.array.core import Array
from dask.order import order

from dask_dgpu.runtime import tasks as gangs
from graph_opt.dask_graph.internals import Alias, DataNode, GraphNode, TaskRef, _execute_subgraph
from graph_opt.dask_graph.layers import DeferredLayer
from graph_opt.passes import name_of

Key = Any
Tasks = Mapping[Key, GraphNode]

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


@dataclass(frozen=True)
class Held:
    """The bytes of blocks that wait for later tasks, of tasks at work, and of many tasks."""

    waiting: int
    at_work: int
    graph: int = 0

    @property
    def nbytes(self) -> int:
        """All of them."""
        return self.waiting + self.at_work + self.graph


@dataclass(frozen=True)
class Rule:
    """The largest tasks are at work at once, as many as there are ``threads``.

    Each counts its inputs, its output in double precision at least, and ``temporaries`` times its
    largest block, or ``loading`` bytes if these are more. To these come the blocks that wait for
    later tasks, in Dask's order. If Dask does not declare the size of a block, it has the bytes of
    all inputs, and at least ``usual`` ones.
    """

    threads: int
    temporaries: float = TEMPORARIES
    usual: int = 0
    loading: int = 0

    def held(self, tasks: Tasks, result: Array) -> Held:
        """Return what threads hold while they compute the tasks of an array."""
        ordered = sorted(tasks, key=order(dict(tasks)).__getitem__)
        blocks, parts = _Blocks(result), Counter[Key]()
        numbers: dict[Key, int | None] = {}
        owners: dict[Key, Key] = {}
        reads: dict[Key, set[Key]] = {}
        last: dict[Key, int] = {}
        made: dict[Key, int] = {}
        for at, key in enumerate(ordered):
            viewed = _viewed(tasks[key])
            if viewed is not None:
                owners[key] = owners.get(viewed, viewed)
                parts[owners[key]] += blocks.nbytes(key) or 0
            reads[key] = {owners.get(each, each) for each in tasks[key].dependencies}
            last |= dict.fromkeys(reads[key], at)
            if any(step in _name(key) for step in STEPS):
                numbers |= dict.fromkeys(reads[key], blocks.nbytes(key))
        works, changes = [0], [0] * (len(tasks) + 1)
        for at, key in enumerate(ordered):
            task = tasks[key]
            if key in owners or isinstance(task, DataNode):
                continue
            inputs = [made.get(each, 0) for each in reads[key]]
            loaded, largest = blocks.between(task)
            block = key if blocks.nbytes(key) is not None else _last(key, task)
            declared = blocks.nbytes(block)
            unknown = max(sum(inputs), parts[key], self.usual)
            own = made[key] = unknown if declared is None else declared
            if (few := numbers.get(key)) is not None and not _name(key).startswith(COPIES):
                made[key] = min(own, MOMENTS * few)
            wide = max(own, blocks.nbytes(block, DOUBLE) or 0)
            beside = int(self.temporaries * max(wide, largest, *inputs, 0))
            works.append(sum(inputs) + loaded + wide + max(beside, self.loading))
            changes[at] += made[key]
            changes[last.get(key, at)] -= made[key]
        waiting, at_work = max(accumulate(changes)), sum(nlargest(self.threads, works))
        return Held(waiting, at_work, max(0, len(tasks) * BYTES_PER_TASK - USUAL_GRAPH))


class _Blocks:
    """The bytes of the blocks of a graph, as Dask declares them."""

    def __init__(self, result: Array) -> None:
        layers = dict(result.dask.layers)
        for layer in result.dask.layers.values():
            if isinstance(layer, DeferredLayer):  # an operation of our own, as plain Dask
                layers |= layer.expanded.dask.layers
        self._facts = {name: layer.collection_annotations for name, layer in layers.items()}

    def nbytes(self, key: Key, least: int = 0) -> int | None:
        """Return the bytes of a block, ``None`` if they are unknown.

        Without an index they are those of the largest block of the array. An element counts at
        ``least`` so many.
        """
        facts = self._facts.get(_name(key))
        if not facts or facts.get("type") != "dask.array.core.Array":
            return None
        chunks, index = facts["chunks"], key[1:] if isinstance(key, tuple) else ()
        count = prod(
            each[at] if isinstance(at, int) and at < len(each) else max(each, default=0)
            for each, at in zip(chunks, (*index, *[None] * len(chunks)), strict=False)
        )
        itemsize = max(least, np.dtype(facts["dtype"]).itemsize)
        return int(count) * itemsize if isfinite(count) else None

    def between(self, task: GraphNode) -> tuple[int, int]:
        """Return the bytes of the blocks that fused tasks begin with, and of the largest one."""
        inner = _fused(task)
        sizes = {key: self.nbytes(key) or 0 for key in inner}
        loads = (
            sizes[key]
            for key, each in inner.items()
            if each.dependencies.isdisjoint(inner) and _viewed(each) is None
        )
        return sum(loads), max(sizes.values(), default=0)


def _fused(task: GraphNode) -> dict[Key, GraphNode]:
    """Return the tasks that were fused to one, also those of fused ones among them."""
    if getattr(task, "func", None) is not _execute_subgraph:
        return {}
    inner: dict[Key, GraphNode] = dict(task.args[0])
    for each in task.args[0].values():
        inner |= _fused(each)
    return inner


def _last(key: Key, task: GraphNode) -> Key:
    """Return the key of the last of the tasks that were fused to one."""
    return task.args[1] if getattr(task, "func", None) is _execute_subgraph else key


def _viewed(task: GraphNode) -> Key | None:
    """Return the key of the block that a task returns, or slices."""
    if isinstance(task, Alias):
        return task.target
    is_view = getattr(task, "func", None) in VIEWS and isinstance(task.args[0], TaskRef)
    return task.args[0].key if is_view else None


def _name(key: Key) -> str:
    """Return the name of the array of a key; Dask appends axes to those of fused blocks."""
    return name_of(key).partition("_.")[0]
