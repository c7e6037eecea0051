"""How Dask's layers compute blocks, without names: the arrays that tasks read have numbers.

::

    add-53fa...  (x-91b2..., 0, 1)      a task reads block (0, 1) of array 0: key (0, 0, 1)
    fused tasks  sub-07..., exp-3c...   their keys are the operations, counted: ("sub", 0)

So layers that differ in names alone have equal recipes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dask.blockwise import Blockwise
from dask.highlevelgraph import Layer

from graph_opt.dask_graph.gathering import Together
from graph_opt.dask_graph.internals import (
    BlockwiseDep,
    DataNode,
    GraphNode,
    List,
    Task,
    TaskRef,
    blockwise_token,
)
from graph_opt.dask_graph.layers import name_of, renamed
from graph_opt.model.layout import Index

Key = Any
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
