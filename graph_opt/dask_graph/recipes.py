r"""How Dask's layers compute blocks, without names: the arrays that tasks read have numbers.

::

    add-53fa...  (x-91b2..., 0, 1)      a task reads block (0, 1) of array 0: key (0, 0, 1)
    fused tasks  sub-07..., exp-3c...   their keys are the operations, counted: ("sub", 0)

So layers that differ in names alone have equal recipes. A rank calls most tasks with their blocks
as they are::

    Task("c", f, TaskRef("b"))           task({"b": block})     looks at each argument, each time
    bound(task, ["b"])                   call(block)            knows that it is f(block)

As in Dask, each task has its own copy of its function and arguments, unless these are proven to be
the same at each call. In one process without workers, tasks share them, as in Dask too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import cloudpickle
from dask.blockwise import Blockwise

from graph_opt.dask_graph.functions import Functions, exchanged, is_stateless
from graph_opt.dask_graph.gathering import unnamed
from graph_opt.dask_graph.internals import (
    Alias,
    BlockwiseDep,
    DataNode,
    GraphNode,
    List,
    Task,
    TaskRef,
    blockwise_token,
)
from graph_opt.dask_graph.layers import renamed
from graph_opt.dask_graph.returned import returned
from graph_opt.model.layout import Index
from graph_opt.model.piece import Blockwork
from graph_opt.model.recipe import Block, Kinds, Recipe, Returned, TaskCall

Array = Any
Key = Any

Along = tuple[int | None, ...]
"""For each axis of an array the axis of the result with the same block number, or ``None``."""

BLOCK = "block"
"""The key of a task that computes a block."""


class Tasks(ABC):
    """The tasks that compute the blocks of an array."""

    @abstractmethod
    def task_of(self, index: Index) -> tuple[GraphNode, Sequence[Key], tuple[Block, ...]]:
        """Return the task of the block at a place, and its names for the blocks that it reads."""

    def calls(self, blocks: Collection[Index], *, copies: bool) -> dict[Index, TaskCall]:
        """Return what computes each of these blocks; a task that many share is bound once."""
        calls: dict[Index, TaskCall] = {}
        known: dict[int, tuple[GraphNode, TaskCall]] = {}
        for index in blocks:
            task, names, reads = self.task_of(index)
            if id(task) not in known:
                known[id(task)] = task, bound(task, names, copies=copies)
            calls[index] = known[id(task)][1]._replace(reads=reads)
        return calls

    def returned(self, index: Index, kinds: Kinds) -> Returned | Block | None:
        """Return what the task of a block returns."""
        task, _, reads = self.task_of(index)
        return returned(task, reads, kinds)


@dataclass(frozen=True)
class Common(Tasks):
    """The single task of a blockwise layer, for all its blocks.

    Dask creates a task with other keys for each block, which takes longer than the function of a
    small block. The ``task`` has placeholders with these ``names`` for blocks. ``reads`` are the
    numbers of their arrays, and for each axis the axis of the result with the same block number;
    ``None`` is an axis of one block. ``facts`` about blocks, by placeholder, are constants of each
    block's task.
    """

    task: GraphNode
    names: tuple[str, ...]
    reads: tuple[tuple[int, Along], ...]
    facts: tuple[tuple[str, BlockwiseDep, Along], ...]

    @classmethod
    def of(
        cls, layer: Blockwise, numbers: Mapping[str, int], known: dict[str, BlockwiseDep]
    ) -> Common | None:
        """Return the task of a layer, ``None`` if it reads more than one block of an array.

        Equal facts, by Dask's names for them, become the one that is ``known``, and travel once.
        """
        axes = {letter: axis for axis, letter in enumerate(layer.output_indices)}
        task = layer.task
        reads: dict[str, tuple[int, Along]] = {}
        facts: list[tuple[str, BlockwiseDep, Along]] = []
        for i, (operand, index) in enumerate(layer.indices):
            name = blockwise_token(i)
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
            along = tuple(None if counts[x] == 1 else axes[x] for x in index)
            fact = layer.io_deps.get(operand)
            if fact is None:
                reads[name] = numbers[operand], along
            elif fact.produces_tasks or fact.produces_keys:
                return None
            else:
                facts.append((name, known.setdefault(operand, fact), along))
        if task.dependencies != {*reads, *(name for name, _, _ in facts)}:
            return None
        return cls(unnamed(task, BLOCK), (*reads,), (*reads.values(),), tuple(facts))

    def task_of(self, index: Index) -> tuple[GraphNode, Sequence[Key], tuple[Block, ...]]:
        """Return the task of the block at a place."""
        known = {}
        for name, fact, along in self.facts:
            place = at(index, along)
            known[name] = DataNode(name, fact.get(place, place))
        read = tuple([(number, at(index, along)) for number, along in self.reads])
        return (self.task.substitute(known) if known else self.task), self.names, read


@dataclass(frozen=True)
class Each(Tasks):
    """A task for each block, which reads blocks as ``(number, *index)``."""

    tasks: Mapping[Index, GraphNode]

    def task_of(self, index: Index) -> tuple[GraphNode, Sequence[Key], tuple[Block, ...]]:
        """Return the task of the block at a place."""
        task = self.tasks[index]
        names = names_of(task)
        return task, names, tuple((number, tuple(place)) for number, *place in names)


def recipe_of(
    work: Blockwork,
    numbers: Mapping[str, int],
    known: dict[str, BlockwiseDep],
    functions: Functions,
) -> Recipe:
    """Return how a layer computes blocks of its array.

    ``functions`` has what tasks of one block call instead of functions of Dask's.
    """
    name, layer = work.output.name, work.layer
    if isinstance(layer, Blockwise):
        common = Common.of(layer, numbers, known)
        if common is not None:
            return common
    layer, _ = layer.cull({(name, *index) for index in work.computed}, ())
    tasks = {index: layer[name, *index] for index in work.computed}
    return Each({index: _numbered(task, numbers, functions) for index, task in tasks.items()})


def at(index: Index, along: Iterable[int | None]) -> Index:
    """Return the place of a block that is read for the block at a place."""
    return tuple([0 if axis is None else index[axis] for axis in along])


def _numbered(task: GraphNode, numbers: Mapping[str, int], functions: Functions) -> GraphNode:
    """Return the task of one block, which reads blocks by the numbers of their arrays."""
    own = {key: (numbers[key[0]], *key[1:]) for key in task.dependencies}
    other = exchanged(task.func, functions) if isinstance(task, Task) else None
    if other is not None:
        task = Task(task.key, other, *task.args, **task.kwargs)
    return unnamed(renamed(task, own, BLOCK), BLOCK)


def _node(operand: Any) -> Any:
    """Return the node of a constant in a task."""
    return operand if isinstance(operand, GraphNode | TaskRef) else DataNode(BLOCK, operand)


def bound(node: Any, names: Sequence[Key], *, copies: bool = False) -> TaskCall:
    """Return the call, of blocks with these names, that computes a task or any other node.

    If it ``copies``, each call has its own copies of functions and values that may change.
    """
    if copies and not is_stateless(node):
        return TaskCall(partial(_copied, cloudpickle.dumps(node), names), copied=True)
    kwargs = getattr(node, "kwargs", {})
    if not isinstance(node, Task) or any(
        isinstance(x, GraphNode | TaskRef) for x in kwargs.values()
    ):
        return TaskCall(partial(_evaluated, node, names))
    function, arguments = node.func, node.args
    if kwargs:
        function = partial(function, **kwargs)
    if [*map(_block, arguments)] == [*names]:
        return TaskCall(function)
    return TaskCall(function, arguments=partial(_given, arguments, names))


def names_of(node: GraphNode) -> tuple[Key, ...]:
    """Return the names of the blocks that a node reads, in the order of its arguments."""
    given = map(_block, getattr(node, "args", ()))
    return tuple(dict.fromkeys([*(x for x in given if x is not None), *node.dependencies]))


def _copied(pickled: bytes, names: Sequence[Key], *blocks: Array) -> Any:
    """Run a new copy of a task."""
    return bound(cloudpickle.loads(pickled), names)(*blocks)


def _evaluated(node: Any, names: Sequence[Key], *blocks: Array) -> Any:
    """Let Dask evaluate a node."""
    (value,) = _given([node], names, blocks)
    return value


def _given(arguments: Sequence[Any], names: Sequence[Key], blocks: Sequence[Array]) -> list[Any]:
    """Return the arguments of a task for these blocks."""
    known = dict(zip(names, blocks, strict=True))
    return [
        known[x.key] if isinstance(x, TaskRef) else x(known) if isinstance(x, GraphNode) else x
        for x in arguments
    ]


def _block(argument: Any) -> Any:
    """Return the name of the block that an argument is, ``None`` if it is none."""
    if isinstance(argument, TaskRef):
        return argument.key
    return argument.target if isinstance(argument, Alias) else None
