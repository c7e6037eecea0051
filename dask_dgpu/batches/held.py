"""The bytes of blocks that threads of this process hold while they compute a graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from math import inf
from operator import getitem
from typing import Any

import numpy as np
from dask.core import reverse_dict
from dask.order import order

from dask_dgpu.batches.sizes import Declared, name_of
from dask_dgpu.batches.stored import bytes_at_once
from dask_dgpu.runtime import tasks as gangs
from dask_dgpu.runtime.plans import peak_bytes, plans
from dask_dgpu.runtime.program import Program
from graph_opt.dask_graph.internals import Alias, DataNode, GraphNode, TaskRef, _execute_subgraph
from graph_opt.dask_graph.members import GETTERS
from graph_opt.dask_graph.temporaries import BLOCKS
from graph_opt.dask_graph.work import PASSES, named
from graph_opt.model.layout import dealt

Key = Any
Tasks = Mapping[Key, GraphNode]
EMPTY: Mapping[Key, Any] = {}

BYTES_PER_TASK = 7000
"""Bytes of Dask's objects for a task in a graph, its optimized copy, and the scheduler."""
MOST_ORDERED = 30_000
"""Dask's order of more tasks can take gigabytes, and is not worth a plan."""
USUAL_GRAPH = 16 << 20
"""Bytes of these objects that count to the process, not to the computation."""

ALLOCATE: Mapping[str, float] = {
    **BLOCKS,
    **dict.fromkeys(("concatenate_shaped", "vstack", "transform", "_matmul", "dot"), 0.0),
    "_block_hist": 8.0,  # arrays of indices and masks
}
"""Blocks that functions allocate beside their result; ufuncs and views allocate none."""

WIDENING = ("moment_chunk",)
"""Functions that compute in double precision."""

PARTS = ("topk",)
"""Functions that return a part of a copy of what they read, which stays in memory with it."""

TEMPORARIES = 2.0
"""Blocks that a function allocates beside its result, a guess for those of users."""


@dataclass(frozen=True)
class Held:
    """The bytes of blocks for tasks that have not begun, and those of the tasks at work.

    ``graph`` are those of Dask's own objects, if they are many.
    """

    waiting: int
    at_work: int
    graph: int = 0

    @property
    def nbytes(self) -> int:
        """All of them."""
        return self.waiting + self.at_work + self.graph


def held(tasks: Tasks, declared: Declared, threads: int, most: float = inf) -> Held:
    """Return what threads hold if they compute tasks in Dask's order.

    A block is held until the last task that reads it, or a view of it, is computed. A block that
    no task reads is written and freed at once. If they are more than ``most`` bytes, so is the
    result, but it leaves out some of them.
    """
    graph = max(0, len(tasks) * BYTES_PER_TASK - USUAL_GRAPH)
    if graph > most:
        return Held(0, 0, graph)
    return replace(_Walk(declared).held(tasks, {}, threads, most - graph), graph=graph)


class _Walk:
    """Computes graphs with the bytes of blocks in place of the blocks."""

    def __init__(self, declared: Declared, values: Mapping[Key, Any] = EMPTY) -> None:
        self.declared = declared
        self._fused: dict[Any, int] = {}
        self._values = dict(values)

    def held(
        self, tasks: Tasks, given: Mapping[Key, int], threads: int, enough: float = inf
    ) -> Held:
        """Return the most that threads hold beside ``given`` blocks.

        A task takes as long as it uses bytes. The walk ends at more than ``enough`` bytes.
        """
        self._values |= {
            key: task.value for key, task in tasks.items() if isinstance(task, DataNode)
        }
        own = {key for key, task in tasks.items() if _viewed(task) is None}
        reads = {key: set(_makers(tasks, tasks[key].dependencies)) for key in own}
        readers = Counter(each for read in reads.values() for each in read)
        sizes, made, uses = dict(given), dict[Key, int](), dict[Key, int]()

        def begin(key: Key) -> int:
            task = tasks[key]
            sizes[key] = self._size(key, task, sizes)
            made[key] = self._made(key, task, sizes) if key in own else 0
            uses[key] = made[key] + self._beside(key, task, sizes) if key in own else 0
            return uses[key]

        waiting = working = 0
        most = Held(0, 0)
        for begun, ended in _turns(tasks, threads, begin):
            working += sum(uses[key] for key in begun)
            most = max(most, Held(waiting, working), key=lambda each: each.nbytes)
            if most.nbytes > enough:
                break
            working -= uses[ended]
            if ended in own:
                readers.subtract(reads[ended])
                freed = sum(made[each] for each in reads[ended] if not readers[each])
                waiting += (made[ended] if readers[ended] else 0) - freed
        return most

    def _value(self, argument: Any) -> Any:
        """Return the value of an argument of a task, ``None`` if it is computed."""
        if isinstance(argument, TaskRef):
            return self._values.get(argument.key)
        if not isinstance(argument, GraphNode):
            return argument
        return None if argument.dependencies else argument()

    def _made(self, key: Key, task: GraphNode, sizes: Mapping[Key, int]) -> int:
        """Return the bytes of new memory in a block."""
        if isinstance(task, DataNode) or name_of(_last(key, task)) in self.declared.views:
            return 0
        function, args = _call(task)
        if function is _execute_subgraph:
            fused, last, *_ = args
            declared = {each: self.declared.nbytes(each) or 0 for each in fused}
            task, sizes = fused[last], {**sizes, **declared, **_given(task, sizes)}
        if _function(task) in PARTS:
            return max([sizes[key], *(sizes.get(each, 0) for each in task.dependencies)])
        return sizes[key]

    def _size(self, key: Key, task: GraphNode, sizes: Mapping[Key, int]) -> int:
        """Return the bytes of a block, also those of a view."""
        if (program := _program(task)) is not None:
            return sum(_result_bytes(program))
        nbytes = self.declared.nbytes(_last(key, task))
        if nbytes is None:
            inputs = sum(sizes.get(each, 0) for each in task.dependencies)
            nbytes = inputs if _viewed(task) is not None else max(self.declared.usual, inputs)
        return nbytes

    def _beside(self, key: Key, task: GraphNode, sizes: Mapping[Key, int]) -> int:
        """Return the bytes that a task allocates beside its result."""
        function, args = _call(task)
        if (program := _program(task)) is not None:
            size = program.local_ranks
            owners = {name: dealt(len(each.indices()), size) for name, each in program.inputs}
            return size * peak_bytes(plans(program, owners, size), size)
        if (beside := self.declared.loads.get(name_of(key))) is not None:
            return beside
        if function in GETTERS:
            return bytes_at_once(*map(self._value, args[:2]))
        if function is not _execute_subgraph:
            inputs = [sizes.get(each, 0) for each in task.dependencies]
            copies = _temporaries(task)
            if _function(task) in WIDENING:
                copies *= max(map(self.declared.widening, task.dependencies), default=1)
            return int(copies * max(sizes[key], *inputs, 0))
        fused, given = args[0], _given(task, sizes)
        known = (*((name_of(each), self.declared.nbytes(each)) for each in fused), *given.values())
        if known not in self._fused:
            values = {name: self._value(each) for name, each in zip(args[2], args[3:], strict=True)}
            inner = _Walk(self.declared, values).held(fused, given, 1)
            self._fused[known] = max(0, inner.nbytes - sizes[key])
        return self._fused[known]


def _turns(
    tasks: Tasks, threads: int, begin: Callable[[Key], int]
) -> Iterator[tuple[list[Key], Key]]:
    """Yield the tasks that begin, and the one that ends first; threads take them in Dask's order.

    ``begin`` returns the time that a task takes.
    """
    few = len(tasks) <= MOST_ORDERED
    priority = order(dict(tasks)) if few else {key: at for at, key in enumerate(tasks)}
    missing = {key: len(task.dependencies & tasks.keys()) for key, task in tasks.items()}
    readers = reverse_dict({key: task.dependencies for key, task in tasks.items()})
    ready = [(priority[key], key) for key, count in missing.items() if not count]
    heapify(ready)
    running: list[tuple[int, int, Key]] = []
    now = 0
    while ready or running:
        begun = []
        while ready and len(running) < threads:
            first, key = heappop(ready)
            heappush(running, (now + begin(key), first, key))
            begun.append(key)
        now, _, ended = heappop(running)
        yield begun, ended
        for each in readers[ended]:
            missing[each] -= 1
            if not missing[each]:
                heappush(ready, (priority[each], each))


def _given(task: GraphNode, sizes: Mapping[Key, int]) -> dict[Key, int]:
    """Return the bytes of the blocks that a fused task reads, by their names within it."""
    _, _, names, *blocks = _call(task)[1]
    return {name: _nbytes(each, sizes) for name, each in zip(names, blocks, strict=True)}


def _nbytes(block: Any, sizes: Mapping[Key, int]) -> int:
    """Return the bytes of the blocks that an argument of a task refers to."""
    if isinstance(block, TaskRef):
        return sizes.get(block.key, 0)
    return sum(sizes.get(each, 0) for each in getattr(block, "dependencies", ()))


def _makers(tasks: Tasks, keys: Iterable[Key]) -> Iterator[Key]:
    """Yield the keys of those tasks that made the memory of blocks."""
    for key in keys:
        while key in tasks and (viewed := _viewed(tasks[key])) is not None:
            key = viewed
        if key in tasks:
            yield key


def _viewed(task: GraphNode) -> Key | None:
    """Return the key of the block that a task returns, or slices, without a copy."""
    if isinstance(task, Alias):
        return task.target
    function, args = _call(task)
    is_slice = function is getitem and not isinstance(args[1], list | np.ndarray)
    if (is_slice or function in (gangs.stage, gangs.out)) and isinstance(args[0], TaskRef):
        return args[0].key
    return None


def _call(task: GraphNode) -> tuple[Any, tuple[Any, ...]]:
    """Return the function of a task, and its arguments."""
    return getattr(task, "func", None), getattr(task, "args", ())


def _last(key: Key, task: GraphNode) -> Key:
    """Return the key of the last of the tasks that were fused to one."""
    function, args = _call(task)
    return args[1] if function is _execute_subgraph else key


def _temporaries(task: GraphNode) -> float:
    """Return the blocks that the function of a task allocates beside its result."""
    name = _function(task)
    is_ufunc = name is not None and isinstance(getattr(np, name, None), np.ufunc)
    if name is None or is_ufunc or PASSES.get(name) == 0.0:
        return 0.0
    return ALLOCATE.get(name, TEMPORARIES)


def _function(task: GraphNode) -> str | None:
    """Return the name of the function of a task."""
    function, _ = _call(task)
    return None if function is None else named(function, getattr(task, "kwargs", {}))


def _program(task: GraphNode) -> Program | None:
    """Return the program of a gang."""
    function, args = _call(task)
    return args[0] if function is gangs.gang else None


def _result_bytes(program: Program) -> Iterator[int]:
    values = dict(program.inputs) | {step.output: step.result for step in program.steps}
    return (values[name].nbytes(index) for name, each in program.outputs for index in each)
