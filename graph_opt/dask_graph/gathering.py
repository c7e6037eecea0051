r"""Several tasks as one function: those that Dask has fused, and small ones of a layer.

Of small tasks that depend on each other, one needs one exchange instead of many::

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
from functools import cached_property
from graphlib import TopologicalSorter
from typing import Any, Self

from dask.core import reverse_dict

from graph_opt.dask_graph.internals import DataNode, GraphNode, Task, TaskRef
from graph_opt.dask_graph.layers import renamed
from graph_opt.model.layout import Bare
from graph_opt.passes import in_order, name_of

Key = Any
Tasks = Mapping[Key, GraphNode]
Size = Callable[[Any], float]
"""Returns the bytes of a block by its key, or of what an argument evaluates to."""

MOST_GATHERED = 1 << 20
"""Most bytes that meet: they take no longer than one more exchange."""


@dataclass(frozen=True)
class Together(Bare):
    """The function of several tasks, in their order: it returns the results of those ``wanted``.

    ``names`` are the keys of its arguments. Each value is freed after its last use.
    """

    tasks: tuple[GraphNode, ...]
    wanted: tuple[Key, ...]
    names: tuple[Key, ...]

    def __call__(self, *blocks: Any) -> Any:
        """Run all tasks; an error has a note with the operation of its task."""
        known = dict(zip(self.names, blocks, strict=True))
        for task, ending in zip(self.tasks, self._ending, strict=True):
            try:
                known[task.key] = task(known)
            except Exception as error:
                error.add_note(f"in {name_of(task.key)}")
                raise
            for key in ending:
                del known[key]
        return [known[key] for key in self.wanted]

    def unnamed(self) -> Self:
        """Return the same with operations as the keys of tasks, counted, and numbers of blocks."""
        own: dict[Key, Key] = {key: number for number, key in enumerate(self.names)}
        own |= {task.key: (_operation(task.key), i) for i, task in enumerate(self.tasks)}
        tasks = [unnamed(renamed(task, own, own[task.key]), own[task.key]) for task in self.tasks]
        wanted = tuple(own[key] for key in self.wanted)
        return type(self)(tuple(tasks), wanted, tuple(range(len(self.names))))

    @cached_property
    def _ending(self) -> list[list[Key]]:
        """For each task the values that no later one reads."""
        last = {need: i for i, task in enumerate(self.tasks) for need in task.dependencies}
        ending: list[list[Key]] = [[] for _ in self.tasks]
        for key, at in last.items():
            if key not in self.wanted:
                ending[at].append(key)
        return ending


class Chain(Together):
    """The function of tasks that Dask has fused: it returns the result of the last one."""

    @classmethod
    def of(cls, tasks: Tasks, result: Key, names: Iterable[Key]) -> Self:
        """Return the tasks that a result needs, in order; ``names`` are those of the blocks."""
        given, needed, order = tuple(names), {result}, list[GraphNode]()
        sorter = TopologicalSorter({key: task.dependencies for key, task in tasks.items()})
        for key in reversed([*sorter.static_order()]):
            if key in needed and key not in given:
                needed |= tasks[key].dependencies
                order.append(tasks[key])
        return cls(tuple(reversed(order)), (result,), given)

    def __call__(self, *blocks: Any) -> Any:
        """Return the result for these blocks."""
        (result,) = super().__call__(*blocks)
        return result


def unnamed(task: GraphNode, key: Key) -> GraphNode:
    """Return a task with another key, and without the names of those that are fused into it."""
    if not isinstance(task, Task):
        return renamed(task, {}, key)
    function, read = task.func, task.args
    if task.has_subgraph():
        tasks, result, names, *read = task.args
        function = Chain.of(tasks, result, names)
    if not isinstance(function, Together):
        return renamed(task, {}, key)
    return Task(key, function.unnamed(), *read)


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
    gathered, items = dict(tasks), {}
    for number, group in enumerate(_groups(order, own, small)):
        wanted = tuple(key for key in group if not readers[key] <= {*group})
        joined = _together(("together", number), [cut[key] for key in group], wanted)
        slices = joined.dependencies & parts.keys()
        nbytes = sum(
            size(parts[dependency] if dependency in slices else dependency)
            for dependency in joined.dependencies
        )
        if nbytes > MOST_GATHERED:
            continue
        gathered |= {joined.key: joined} | {each: parts[each] for each in slices}
        for i, key in enumerate(wanted):
            items[key] = Task(None, operator.getitem, TaskRef(joined.key), i)
        for key in group:
            del gathered[key]
    return {key: renamed(task, items, key) for key, task in gathered.items()}


def _with_parts(inner: Tasks, size: Size, limit: float) -> tuple[dict[Key, GraphNode], Tasks]:
    """Return tasks that read small slices of large blocks as other tasks, and these."""
    split: dict[Key, GraphNode] = {}
    parts: dict[Key, GraphNode] = {}

    def part(argument: Any) -> Any:
        is_slice = isinstance(argument, Task) and argument.func is operator.getitem
        if not is_slice or argument.dependencies & inner.keys() or size(argument) > limit:
            return argument
        key = ("part", len(parts))
        parts[key] = argument.substitute({}, key)
        return TaskRef(key)

    for key, task in inner.items():
        split[key] = task
        if isinstance(task, Task):
            split[key] = type(task)(key, task.func, *map(part, task.args), **task.kwargs)
    return split, parts


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
    place = {key: i for i, key in enumerate(order)}
    groups = {id(group): group for group in group_of.values() if len(group) > 1}
    return [sorted(group, key=place.__getitem__) for group in groups.values()]


def _operation(key: Key) -> str:
    name = name_of(key)
    return name.rpartition("-")[0] or name


def _together(key: Key, group: list[GraphNode], wanted: tuple[Key, ...]) -> Task:
    needs = set().union(*(task.dependencies for task in group)) - {task.key for task in group}
    names = tuple(sorted(needs, key=repr))
    return Task(key, Together(tuple(group), wanted, names), *map(TaskRef, names))
