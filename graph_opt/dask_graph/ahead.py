"""Reading ahead for the parts of a collective: one part, not all of them.

::

    part 0            part 1            part 2            part 3
    read, compute --> compute --------> compute --------> compute
    read (part 1)     read (part 2)     read (part 3)

Workers have nothing else to do while a part is computed, so they would read the blocks of all
later parts, until their memory is full. The tasks that begin the work for a part wait for the
``turn`` of the part before it: at most the blocks of two parts are read and not yet computed with.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from graph_opt.dask_graph.internals import GraphNode, Task, TaskRef

Key = Any

Parts = Sequence[tuple[Key, Key | None]]
"""The keys of the ``gang`` task and of the ``turn`` task of each part, in order."""


class Waiting(NamedTuple):
    """Tasks that wait for a ``turn``, by its key, and new names for all that depend on them.

    The tasks have other dependencies than in a graph without parts, so they need other names.
    """

    turns: dict[Key, Key]
    names: dict[Key, Key]

    def applied(self, key: Key, task: GraphNode) -> GraphNode:
        """Return a task, renamed already, that waits for its turn if it must."""
        if key not in self.turns or not isinstance(task, Task):
            return task
        turn = TaskRef(self.turns[key])
        return Task(task.key, after_turn, turn, task, _data_producer=task.data_producer)


def after_turn(turn: None, block: Any) -> Any:
    """Return a block that is computed when its turn has come."""
    return block


def waiting(
    graph: Mapping[Key, GraphNode], collectives: Iterable[Parts], wanted: AbstractSet[Key]
) -> Waiting:
    """Have the tasks without inputs, such as reading, wait for the part before the one before.

    What several parts need belongs to the first of them. Requested keys, those in ``wanted``,
    wait for nothing, since they keep their names.
    """
    made = {key: turn for key, turn in _made(graph, collectives) if key not in wanted}
    turns = {key: turn for key, turn in made.items() if _is_source(graph, key)}
    readers = defaultdict(list)
    for key in made:
        for read in graph[key].dependencies & made.keys():
            readers[read].append(key)
    names: dict[Key, Key] = {}
    left = list(turns)
    while left:
        key = left.pop()
        if key not in names:
            names[key] = _named(key, made[key])
            left += readers[key]
    return Waiting(turns, names)


def _made(
    graph: Mapping[Key, GraphNode], collectives: Iterable[Parts]
) -> Iterator[tuple[Key, Key]]:
    """Yield the tasks for the third part and later ones alone, and the ``turn`` before theirs.

    Each task belongs to the first part, in one order of all parts, that depends on it. So no
    ``turn`` depends on a task that waits for it.
    """
    seen: set[Key] = set()
    for parts in collectives:
        turn = None
        for gang, next_turn in parts:
            left = [gang]
            while left:
                key = left.pop()
                if key in seen or key not in graph:
                    continue
                seen.add(key)
                left += graph[key].dependencies
                if turn is not None and type(graph[key]) is Task:
                    yield key, turn
            turn = next_turn


def _is_source(graph: Mapping[Key, GraphNode], key: Key) -> bool:
    """Whether a task depends on no other task: on nothing, or on data."""
    return not any(isinstance(graph.get(read), Task) for read in graph[key].dependencies)


def _named(key: Key, turn: Key) -> Key:
    token = turn[0].rpartition("-")[2]
    return (f"{key[0]}-{token}", *key[1:]) if isinstance(key, tuple) else f"{key}-{token}"
