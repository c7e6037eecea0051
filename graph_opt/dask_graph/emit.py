"""Replace regions by the Dask tasks of their gangs, and finish these after Dask's own passes.

::

    stage (one per input block)  ->  gang (one)  ->  out (one per wanted block)

A ``stage`` runs on a worker with its block and passes it on without a copy. The ``gang`` task
has the scheduler run one program on all ranks. An ``out`` runs on the worker that computed its
block and returns it. The number of tasks is linear in the number of blocks.

The parts of a collective run one after another::

    stage  ->  gang  ->  out  ->  turn  ->  stage  ->  gang  ->  out

A ``turn`` has the ``stage`` tasks of a part wait for the part before: blocks that are staged
cannot be spilled, so those of one part at a time are. If parts compute the terms of a sum, Dask
adds each ``out`` to the sum of those before.

Blocks of data are within the ``stage`` tasks that read them: one key and one task fewer a block.
Dask's fusion does so for its own tasks, and skips ``stage`` tasks.

Workers have nothing else to do while a part is computed, so they would read the blocks of all
later parts, until their memory is full. The tasks that begin the work for a part wait for the
``turn`` of the part before it: at most the blocks of two parts are read and not yet computed with::

    part 0            part 1            part 2            part 3
    read, compute --> compute --------> compute --------> compute
    read (part 1)     read (part 2)     read (part 3)
"""

from __future__ import annotations

import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer

from graph_opt.dask_graph.internals import DataNode, GraphNode, List, Task, TaskRef, finalize
from graph_opt.model.names import GANG, STAGE, TURN, is_gang, is_stage, serves
from graph_opt.model.piece import Region

Key = Any


class UnfusedTask(Task):
    """A task that Dask's linear fusion skips, because its key has a meaning."""

    __slots__ = ()

    @property
    def block_fusion(self) -> bool:
        """Always true."""
        return True


@dataclass(frozen=True)
class TaskFunctions:
    """The functions of the tasks.

    - ``stage(block, declared)``: ``declared`` is ``None`` if only Dask's own functions read it. In
      a part of a collective it has a third argument, the result of a ``turn``.
    - ``gang(program, *staged)``: one list for each input.
    - ``out(handle, block)``: the name of the array and the index of the block. With a third
      argument it is a number that ``compute`` returns.
    """

    stage: Callable[..., Any]
    gang: Callable[..., Any]
    out: Callable[..., Any]


class GangLayer(MaterializedLayer):
    """The ``stage`` tasks and the ``gang`` task of a region, with its program's payload.

    The attribute ``gang`` is the key of the latter, ``turn`` that of the ``turn`` task, if any.
    """

    def __init__(self, region: Region, functions: TaskFunctions, program: Any) -> None:
        self.region = region
        self.gang = gang_key(region)
        tasks: dict[Key, GraphNode] = {}
        staged: list[List] = []
        after: list[TaskRef] = []
        self.turn: Key | None = None
        if region.after is not None:
            self.turn, (name, index) = (f"{TURN}-{region.token}", 0), region.after[1]
            tasks[self.turn] = UnfusedTask(self.turn, take_turn, TaskRef((name, *index)))
            after = [TaskRef(self.turn)]
        operands = region.operands
        for i, (node, indices) in enumerate(region.inputs):
            keys: list[Key] = [(f"{STAGE}-{i}-{region.token}", *index) for index in indices]
            for key, index in zip(keys, indices, strict=True):
                declared = None
                if node.name in operands:
                    shape = node.block_shape(index)
                    declared = node.name, node.dtype, shape, node.container
                block = TaskRef((node.name, *index))
                tasks[key] = UnfusedTask(key, functions.stage, block, declared, *after)
            staged.append(List(*map(TaskRef, keys)))
        tasks[self.gang] = UnfusedTask(self.gang, functions.gang, program, *staged)
        super().__init__(tasks, region.annotations)


class PartsLayer(MaterializedLayer):
    """All tasks of the gangs that compute an array in ``parts``: they depend on each other."""

    def __init__(self, parts: Sequence[GangLayer], outs: Mapping[Key, GraphNode]) -> None:
        self.parts = parts
        tasks = dict(outs)
        for part in parts:
            tasks.update(part.mapping)
        super().__init__(tasks, parts[0].annotations)


def take_turn(block: Any) -> None:
    """Return nothing: a block of the part before exists, so all of them do."""


def guarded(graph: HighLevelGraph) -> HighLevelGraph:
    """Protect the gangs of a graph that was optimized before from Dask's fusion.

    If an array becomes part of a Delayed, Dask optimizes its graph and wraps each task in
    another, which may be fused.
    """
    layers: dict[str, Layer] = {}
    for name, layer in graph.layers.items():
        if not isinstance(layer, MaterializedLayer):
            continue
        gangs = set(filter(is_gang, layer))
        if not gangs:
            continue
        own = {
            key: UnfusedTask(key, task.func, *task.args, **task.kwargs)
            for key, task in layer.mapping.items()
            if type(task) is Task and (key in gangs or serves(key) or task.dependencies & gangs)
        }
        layers[name] = MaterializedLayer(
            {**layer.mapping, **own}, layer.annotations, layer.collection_annotations
        )
    return HighLevelGraph({**graph.layers, **layers}, graph.dependencies) if layers else graph


def gang_key(region: Region) -> Key:
    """Return the key of a region's ``gang`` task."""
    return f"{GANG}-{region.token}", 0


def emit(
    graph: HighLevelGraph, gangs: Iterable[tuple[Region, Any]], functions: TaskFunctions
) -> HighLevelGraph:
    """Replace the members of each region by its gang and a layer for each wanted array.

    ``gangs`` are regions with the payloads of their programs; the parts of a collective follow one
    another, and become one layer.
    """
    layers: dict[str, Layer] = dict(graph.layers)
    dependencies = {name: set(needed) for name, needed in graph.dependencies.items()}
    parts: defaultdict[tuple[str, ...], list[GangLayer]] = defaultdict(list)
    for region, program in gangs:
        whole = tuple(region.nodes) if region.term_of is None else (region.term_of,)
        parts[whole].append(GangLayer(region, functions, program))
    for names, keys in parts.items():
        for name in names:
            del layers[name], dependencies[name]
        read = {node.name for key in keys for node, blocks in key.region.inputs if blocks}
        outs: defaultdict[str, dict[Key, GraphNode]] = defaultdict(dict)
        for each in keys:
            for name, blocks in each.region.wanted:
                for key in ((name, *index) for index in blocks):
                    outs[name][key] = UnfusedTask(key, functions.out, TaskRef(each.gang), key)
        if len(keys) > 1:
            (name,) = names
            tasks = {key: task for out in outs.values() for key, task in out.items()}
            layers[name] = PartsLayer(keys, tasks | _sums(key.region for key in keys))
            dependencies[name] = read
            continue
        (layer,) = keys
        own = layer.gang[0]
        layers[own] = layer
        dependencies[own] = read
        for name, tasks in outs.items():
            layers[name] = MaterializedLayer(tasks, layer.annotations)
            dependencies[name] = {own}
    # Dask may name layers that no task reads
    known = {name: needed & layers.keys() for name, needed in dependencies.items()}
    return HighLevelGraph(layers, known)


def _sums(parts: Iterable[Region]) -> dict[Key, GraphNode]:
    """Return the tasks that add terms, one after another, so that few are in memory at a time."""
    terms: defaultdict[Key, list[Key]] = defaultdict(list)
    for part in parts:
        if part.term_of is not None:
            ((name, blocks),) = part.wanted
            for index in blocks:
                terms[part.term_of, *index].append((name, *index))
    tasks: dict[Key, GraphNode] = {}
    for key, (first, *others) in terms.items():
        before = first
        for term in others:
            after = key if term == others[-1] else (f"{term[0]}-sum", *term[1:])
            tasks[after] = Task(after, operator.add, TaskRef(before), TaskRef(term))
            before = after
    return tasks


def gangs_of(graph: HighLevelGraph) -> Iterator[GangLayer]:
    """Yield the gangs of a graph with the layers of :func:`emit`."""
    for layer in graph.layers.values():
        if isinstance(layer, GangLayer):
            yield layer
        elif isinstance(layer, PartsLayer):
            yield from layer.parts


def finish(
    graph: Mapping[Any, GraphNode], wanted: AbstractSet[Any], emitted: HighLevelGraph
) -> Any:
    """Rename blocks that another gang may compute too, and annotate gangs again.

    A part of an array has the same keys as the whole, and so has an array within a region. They
    depend on different gangs, so a scheduler that knows both would report a collision.
    Requested keys, those in ``wanted``, stay.

    Blocks for a part of a collective are made while the part before it is computed, not earlier.

    Dask's fusion drops all annotations; the graph ``emitted`` still has them. Returns a dict, or
    a graph with layers if there are annotations.
    """
    # gangs of a graph that was optimized before are finished
    layers = {layer.gang: layer for layer in gangs_of(emitted) if layer.gang in graph}
    outs: dict[Any, defaultdict[str, list[Any]]] = {gang: defaultdict(list) for gang in layers}
    for key, task in graph.items():
        for gang in task.dependencies & layers.keys():
            outs[gang][key[0]].append(key)
    names: dict[Any, Any] = {}
    for gang, arrays in outs.items():
        region = layers[gang].region
        for name, keys in arrays.items():
            alone = len(region.members) == 1 and region.term_of is None
            whole = alone and len(keys) == region.nodes[name].blocks
            if not whole and wanted.isdisjoint(keys):
                names |= {key: (f"{name}-{region.token}", *key[1:]) for key in keys}
    turns, later = waiting(graph, _collectives(emitted), wanted)
    names |= later
    tasks = {names.get(key, key): late(key, task, names, turns) for key, task in graph.items()}
    annotated: dict[str, MaterializedLayer] = {}
    for gang, layer in layers.items():
        if layer.annotations:
            keys = [names.get(key, key) for keys in outs[gang].values() for key in keys]
            own = {key: tasks.pop(key) for key in (gang, *tasks[gang].dependencies, *keys)}
            annotated[gang[0]] = MaterializedLayer(own, annotations=layer.annotations)
    if not annotated:
        return tasks
    annotated["rest"] = MaterializedLayer(tasks)
    every = set(annotated)
    return HighLevelGraph(annotated, {name: every - {name} for name in every})


def answered(graph: Any, wanted: Collection[Key], out: Callable[..., Any]) -> Any:
    """Return finished tasks in which gangs return numbers as ``compute`` does.

    Dask has one more task for it, which copies the only block of the result.
    """
    if isinstance(graph, HighLevelGraph):
        return graph
    numbers = {key: task for key in wanted if (task := graph.get(key)) and _is_number(task)}
    readers = Counter(read for task in graph.values() if numbers for read in task.dependencies)
    answered = dict(graph)
    for key, task in numbers.items():
        (block,) = task.dependencies
        given = answered.get(block)
        alone = readers[block] == 1 and block not in wanted
        if alone and isinstance(given, Task) and given.func is out:
            del answered[block]
            answered[key] = UnfusedTask(key, out, *given.args, True)
    return answered


def _is_number(task: GraphNode) -> bool:
    """Whether a task returns the only block of an array without axes."""
    joins = isinstance(task, Task) and task.func is finalize and len(task.dependencies) == 1
    return joins and all(isinstance(key, tuple) and len(key) == 1 for key in task.dependencies)


def _collectives(emitted: HighLevelGraph) -> Iterator[Parts]:
    for layer in emitted.layers.values():
        if isinstance(layer, PartsLayer):
            yield [(part.gang, part.turn) for part in layer.parts]


def late(
    key: Key, task: GraphNode, names: Mapping[Key, Key], turns: Mapping[Key, Key]
) -> GraphNode:
    """Return a task with new names, which waits for its turn if it has one."""
    if key in names or not names.keys().isdisjoint(task.dependencies):
        task = task.substitute(names, names.get(key))
    if key not in turns or not isinstance(task, Task):
        return task
    turn = TaskRef(turns[key])
    return Task(task.key, after_turn, turn, task, _data_producer=task.data_producer)


def embedded(
    graph: Mapping[Key, GraphNode],
    wanted: AbstractSet[Key],
    exist: Callable[[Collection[Key]], Collection[Key]],
) -> dict[Key, GraphNode]:
    """Return a graph with blocks of data as arguments of the ``stage`` tasks that read them.

    Blocks stay that another task reads too, that are ``wanted``, or that ``exist`` on a worker: a
    gang may begin on these at once.
    """
    stages: dict[Key, Key] = {}
    for key, task in graph.items():
        if is_stage(key) and type(task) is UnfusedTask and isinstance(task.args[0], TaskRef):
            read = task.args[0].key
            if type(graph.get(read)) is DataNode and read not in wanted:
                stages[read] = key
    if not stages:
        return dict(graph)
    readers = Counter(read for task in graph.values() for read in task.dependencies)
    existing = exist(stages)
    alone = {read for read in stages if readers[read] == 1 and read not in existing}
    embedded = {key: task for key, task in graph.items() if key not in alone}
    for read in alone:
        task = embedded[stages[read]]
        data, others = graph[read].value, task.args[1:]
        embedded[task.key] = UnfusedTask(task.key, task.func, data, *others)
    return embedded


Parts = Sequence[tuple[Key, Key | None]]
"""The keys of the ``gang`` task and of the ``turn`` task of each part, in order."""


def after_turn(turn: None, block: Any) -> Any:
    """Return a block that is computed when its turn has come."""
    return block


def waiting(
    graph: Mapping[Key, GraphNode], collectives: Iterable[Parts], wanted: AbstractSet[Key]
) -> tuple[dict[Key, Key], dict[Key, Key]]:
    """Have the tasks without inputs, such as reading, wait for the part before the one before.

    Returns their ``turn`` tasks, and new names for all that depend on them: these tasks have other
    dependencies than in a graph without parts.

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
    return turns, names


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
    token = turn[0].removeprefix(f"{TURN}-")
    return (f"{key[0]}-{token}", *key[1:]) if isinstance(key, tuple) else f"{key}-{token}"
