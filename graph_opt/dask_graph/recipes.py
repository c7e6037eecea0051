r"""How Dask's layers compute blocks, without names: the arrays that tasks read have numbers.

::

    add-53fa...  (x-91b2..., 0, 1)      a task reads block (0, 1) of array 0: key (0, 0, 1)
    fused tasks  sub-07..., exp-3c...   their keys are the operations, counted: ("sub", 0)

So layers that differ in names alone have equal recipes.

Small tasks of a layer that depend on each other are one task: one exchange instead of many.

::

    m0    m1    m2     Dask's running sum: a total is the    m0  m1  m2   The last rows meet, and
      \     \          total before and the last row of a     |   |       each rank that needs a
      t1 -> t2         block. Between ranks, each total       s0  s1      total computes all, in
      |     |          waits for the one before it.             \ /       the same order.
    r0 r1    r2                                               [t1 t2]
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dask.blockwise import Blockwise
from dask.core import reverse_dict
from dask.highlevelgraph import Layer

from graph_opt.dask_graph.internals import (
    BlockwiseDep,
    DataNode,
    GraphNode,
    List,
    Task,
    TaskRef,
    blockwise_token,
)
from graph_opt.dask_graph.layers import renamed
from graph_opt.model.layout import Index
from graph_opt.passes import in_order, name_of

Key = Any
Tasks = Mapping[Key, GraphNode]
Size = Callable[[Any], float]
"""Returns the bytes of a block by its key, or of what an argument evaluates to."""

MOST_GATHERED = 1 << 20
"""Most bytes that meet: they take no longer than one more exchange."""


@dataclass(frozen=True)
class Together:
    """The function of several tasks, in their order: it returns the results of those ``wanted``.

    ``names`` are the keys of its arguments.
    """

    tasks: tuple[GraphNode, ...]
    wanted: tuple[Key, ...]
    names: tuple[Key, ...]

    def __call__(self, *blocks: Any) -> list[Any]:
        """Run all tasks."""
        known = dict(zip(self.names, blocks, strict=True))
        for task in self.tasks:
            known[task.key] = task({need: known[need] for need in task.dependencies})
        return [known[key] for key in self.wanted]


def gathered(tasks: Tasks, results: Collection[Key], size: Size, limit: float) -> Tasks:
    """Return the tasks of a layer, with one task for each group of small ones.

    A task is small if neither it nor what it reads has more than ``limit`` bytes. The slices of
    blocks that it reads become tasks of their own. ``results`` stay as they are.
    """
    own = {key: [x for x in task.dependencies if x in tasks] for key, task in tasks.items()}
    order = in_order(own)
    cut, parts = _with_parts({key: tasks[key] for key in order if key not in results}, size, limit)
    small = {
        key
        for key, task in cut.items()
        if not isinstance(task, DataNode)
        and all(size(each) <= limit for each in {key, *task.dependencies} - parts.keys())
    }
    readers = reverse_dict(own)
    found, items = dict(tasks), {}
    for number, group in enumerate(_groups(order, own, small)):
        wanted = tuple(key for key in group if not readers[key] <= {*group})
        joined = _together(("together", number), [cut[key] for key in group], wanted)
        slices = joined.dependencies & parts.keys()
        nbytes = sum(size(parts[each] if each in slices else each) for each in joined.dependencies)
        if nbytes > MOST_GATHERED:
            continue
        found |= {joined.key: joined} | {each: parts[each] for each in slices}
        for at, key in enumerate(wanted):
            items[key] = Task(None, operator.getitem, TaskRef(joined.key), at)
        for key in group:
            del found[key]
    return {key: renamed(task, items, key) for key, task in found.items()}


def _with_parts(inner: Tasks, size: Size, limit: float) -> tuple[dict[Key, GraphNode], Tasks]:
    """Return tasks that read small slices of large blocks as other tasks, and these."""
    found: dict[Key, GraphNode] = {}
    parts: dict[Key, GraphNode] = {}

    def part(argument: Any) -> Any:
        is_slice = isinstance(argument, Task) and argument.func is operator.getitem
        if not is_slice or argument.dependencies & inner.keys() or size(argument) > limit:
            return argument
        key = ("part", len(parts))
        parts[key] = argument.substitute({}, key)
        return TaskRef(key)

    for key, task in inner.items():
        found[key] = task
        if isinstance(task, Task):
            found[key] = type(task)(key, task.func, *map(part, task.args), **task.kwargs)
    return found, parts


def _groups(
    order: list[Key], own: Mapping[Key, list[Key]], small: Collection[Key]
) -> list[list[Key]]:
    """Return groups of several small tasks that read each other, without a path out and back."""
    levels: dict[Key, int] = {}
    group_of: dict[Key, list[Key]] = {}
    for key in order:
        levels[key] = max(
            (levels[each] + (each in small and key not in small) for each in own[key]), default=0
        )
        if key not in small:
            continue
        group_of[key] = [key]
        for each in own[key]:
            if each in small and levels[each] == levels[key]:
                first, second = group_of[each], group_of[key]
                if first is not second:
                    first += second
                    group_of |= dict.fromkeys(second, first)
    place = {key: at for at, key in enumerate(order)}
    found = {id(group): group for group in group_of.values() if len(group) > 1}
    return [sorted(group, key=place.__getitem__) for group in found.values()]


def _together(key: Key, group: list[GraphNode], wanted: tuple[Key, ...]) -> Task:
    needs = set().union(*(task.dependencies for task in group)) - {task.key for task in group}
    names = tuple(sorted(needs, key=repr))
    return Task(key, Together(tuple(group), wanted, names), *map(TaskRef, names))


Along = tuple[int | None, ...]
"""For each axis of an array the axis of the result with the same block number, or ``None``."""

BLOCK = "block"
"""The key of a task that computes a block."""


@dataclass(frozen=True)
class Common:
    """The single task of a blockwise layer, for all its blocks.

    Dask creates a task with other keys for each block, which takes longer than the function of a
    small block. ``reads`` are the numbers of the arrays whose blocks the ``task`` has placeholders
    for, in ``places``, and for each axis the axis of the result with the same block number;
    ``None`` is an axis of one block. ``facts`` about blocks, by placeholder, are constants of each
    block's task.
    """

    task: GraphNode
    reads: tuple[tuple[int, Along], ...]
    places: Mapping[str, int]
    facts: tuple[tuple[str, BlockwiseDep, Along], ...]

    @classmethod
    def of(
        cls, layer: Blockwise, numbers: Mapping[str, int], known: dict[str, BlockwiseDep]
    ) -> Common | None:
        """Return the task of a layer, ``None`` if it reads more than one block of an array.

        Equal facts, by Dask's names for them, become the one that is ``known``, and travel once.
        """
        axes = {letter: axis for axis, letter in enumerate(layer.output_indices)}
        task, names = layer.task, set()
        reads: list[tuple[int, Along]] = []
        facts: list[tuple[str, BlockwiseDep, Along]] = []
        places: dict[str, int] = {}
        for at, (operand, index) in enumerate(layer.indices):
            name = blockwise_token(at)
            if name not in task.dependencies:
                continue
            if index is None:
                task = task.substitute({name: _node(operand)})
                continue
            if not isinstance(operand, str):
                return None
            counts = dict(zip(index, layer.numblocks[operand], strict=True))
            reduced = counts.keys() - axes.keys()
            if any(counts[x] > 1 for x in reduced) or (reduced and layer.concatenate):
                return None  # several blocks of one array
            for _ in reduced:  # Dask gives a list of blocks along each
                task = task.substitute({name: List(TaskRef(name))})
            names.add(name)
            along = tuple(None if counts[x] == 1 else axes[x] for x in index)
            fact = layer.io_deps.get(operand)
            if fact is None:
                places[name] = len(reads)
                reads.append((numbers[operand], along))
            elif fact.produces_tasks or fact.produces_keys:
                return None
            else:
                facts.append((name, known.setdefault(operand, fact), along))
        if task.dependencies != names:
            return None
        return cls(_unnamed(task, BLOCK), tuple(reads), places, tuple(facts))

    def read(self, index: Index) -> list[tuple[int, Index]]:
        """Return the blocks that the task reads for the block at this place."""
        return [(number, at(index, along)) for number, along in self.reads]

    def with_facts(self, index: Index) -> GraphNode:
        """Return the task of the block at this place."""
        known = {}
        for name, fact, along in self.facts:
            place = at(index, along)
            known[name] = DataNode(name, fact.get(place, place))
        return self.task.substitute(known)


Recipe = Common | Mapping[Index, GraphNode]
"""One task for all blocks, or one for each, which read blocks as ``(number, *index)``."""


def recipe_of(
    name: str,
    layer: Layer,
    blocks: Collection[Index],
    numbers: Mapping[str, int],
    known: dict[str, BlockwiseDep],
) -> Recipe:
    """Return how a layer computes some blocks of its array, called ``name``."""
    if isinstance(layer, Blockwise):
        common = Common.of(layer, numbers, known)
        if common is not None:
            return common
    layer, _ = layer.cull({(name, *index) for index in blocks}, ())
    return {index: _numbered(layer[name, *index], numbers) for index in blocks}


def at(index: Index, along: Iterable[int | None]) -> Index:
    """Return the place of a block that is read for the block at a place."""
    return tuple([0 if axis is None else index[axis] for axis in along])


def without_names(
    tasks: Mapping[Key, GraphNode], given: Iterable[Key]
) -> tuple[dict[Key, GraphNode], dict[Key, Key]]:
    """Return tasks that read each other with operations as keys, counted, and the new keys.

    The keys of ``given`` values become their numbers.
    """
    own: dict[Key, Key] = {key: number for number, key in enumerate(given)}
    own |= {key: (_operation(key), number) for number, key in enumerate(tasks)}
    found = {own[key]: _unnamed(renamed(t, own, own[key]), own[key]) for key, t in tasks.items()}
    return found, own


def _numbered(task: GraphNode, numbers: Mapping[str, int]) -> GraphNode:
    """Return the task of one block, which reads blocks by the numbers of their arrays."""
    own = {key: (numbers[key[0]], *key[1:]) for key in task.dependencies}
    return _unnamed(renamed(task, own, BLOCK), BLOCK)


def _unnamed(task: GraphNode, key: Key) -> GraphNode:
    """Return a task with another key, and without the names of those that are fused into it."""
    if isinstance(task, Task) and isinstance(task.func, Together):
        tasks, own = without_names({each.key: each for each in task.func.tasks}, task.func.names)
        wanted = tuple(own[each] for each in task.func.wanted)
        function = Together((*tasks.values(),), wanted, tuple(range(len(task.func.names))))
        return Task(key, function, *task.args)
    if not (isinstance(task, Task) and task.has_subgraph()):
        return renamed(task, {}, key)
    inner, result, given, *read = task.args
    tasks, own = without_names(inner, given)
    return Task(key, task.func, tasks, own[result], tuple(range(len(given))), *read)


def _operation(key: Key) -> str:
    name = name_of(key)
    return name.rpartition("-")[0] or name


def _node(operand: Any) -> Any:
    """Return the node of a constant in a task."""
    return operand if isinstance(operand, GraphNode | TaskRef) else DataNode(BLOCK, operand)
