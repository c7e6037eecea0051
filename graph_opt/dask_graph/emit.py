"""Replace regions by the Dask tasks of their gangs, and finish these after Dask's own passes.

::

    stage (one per input block)  ->  gang (one)  ->  out (one per wanted block)

A ``stage`` runs on a worker with its block and passes it on without a copy. The ``gang`` task
has the scheduler run one program on all ranks. An ``out`` runs on the worker that computed its
block and returns it. The number of tasks is linear in the number of blocks. :class:`Plain` has
Dask's own tasks for a gang that cannot compute its region.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer

from graph_opt.dask_graph.internals import (
    DataNode,
    GraphNode,
    List,
    Task,
    TaskRef,
    convert_legacy_graph,
    cull,
    get_sync,
)
from graph_opt.model.piece import Region

Key = tuple[Any, ...]

STAGE = "dgpu-stage"
GANG = "dgpu-gang"


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

    - ``stage(block, declared)``: ``declared`` is ``None`` if only Dask's own functions read it.
    - ``gang(program, *staged)``: one list for each input.
    - ``out(handle, block)``: the name of the array and the index of the block.
    """

    stage: Callable[..., Any]
    gang: Callable[..., Any]
    out: Callable[..., Any]


class GangLayer(MaterializedLayer):
    """The ``stage`` tasks and the ``gang`` task of a region, with its program's payload.

    The attribute ``gang`` is the key of the latter.
    """

    def __init__(self, region: Region, functions: TaskFunctions, program: Any) -> None:
        self.region = region
        self.gang = gang_key(region)
        tasks: dict[Key, GraphNode] = {}
        staged: list[List] = []
        operands = region.operands
        for at, (node, indices) in enumerate(region.inputs):
            keys: list[Key] = [(f"{STAGE}-{at}-{region.token}", *index) for index in indices]
            for key, index in zip(keys, indices, strict=True):
                declared = None
                if node.name in operands:
                    shape = node.block_shape(index)
                    declared = node.name, node.dtype, shape, node.container
                block = TaskRef((node.name, *index))
                tasks[key] = UnfusedTask(key, functions.stage, block, declared)
            staged.append(List(*map(TaskRef, keys)))
        tasks[self.gang] = UnfusedTask(self.gang, functions.gang, program, *staged)
        super().__init__(tasks, region.annotations)


def guarded(graph: HighLevelGraph) -> HighLevelGraph:
    """Protect the gangs of a graph that was optimized before from Dask's fusion.

    If an array becomes part of a Delayed, Dask optimizes its graph and wraps each task in
    another, which may be fused.
    """
    layers = dict(graph.layers)
    for name, layer in graph.layers.items():
        if not isinstance(layer, MaterializedLayer):
            continue
        gangs = set(filter(is_gang, layer))
        if not gangs:
            continue
        own = {
            key: UnfusedTask(key, task.func, *task.args, **task.kwargs)
            for key, task in layer.mapping.items()
            if type(task) is Task and (key in gangs or is_stage(key) or task.dependencies & gangs)
        }
        layers[name] = MaterializedLayer(
            {**layer.mapping, **own}, layer.annotations, layer.collection_annotations
        )
    return HighLevelGraph(layers, graph.dependencies)


def is_gang(key: Any) -> bool:
    """Whether a key belongs to a ``gang`` task."""
    return type(key) is tuple and type(key[0]) is str and key[0].startswith(GANG)


def is_stage(key: Any) -> bool:
    """Whether a key belongs to a ``stage`` task."""
    return type(key) is tuple and type(key[0]) is str and key[0].startswith(STAGE)


def gang_key(region: Region) -> Key:
    """Return the key of a region's ``gang`` task."""
    return f"{GANG}-{region.token}", 0


def emit(
    graph: HighLevelGraph, gangs: Iterable[tuple[Region, Any]], functions: TaskFunctions
) -> HighLevelGraph:
    """Replace the members of each region by its gang and a layer for each wanted array.

    ``gangs`` are regions with the payloads of their programs.
    """
    layers: dict[str, Layer] = dict(graph.layers)
    dependencies = {name: set(needed) for name, needed in graph.dependencies.items()}
    for region, program in gangs:
        for name in region.nodes:
            del layers[name], dependencies[name]
        layer = GangLayer(region, functions, program)
        own = layer.gang[0]
        layers[own] = layer
        dependencies[own] = {node.name for node, blocks in region.inputs if blocks}
        for name, blocks in region.wanted:
            keys = [(name, *index) for index in blocks]
            outs = {k: UnfusedTask(k, functions.out, TaskRef(layer.gang), k) for k in keys}
            layers[name] = MaterializedLayer(outs, region.annotations)
            dependencies[name] = {own}
    # Dask may name layers that no task reads
    known = {name: needed & layers.keys() for name, needed in dependencies.items()}
    return HighLevelGraph(layers, known)


def finish(
    graph: Mapping[Any, GraphNode], wanted: AbstractSet[Any], emitted: HighLevelGraph
) -> Any:
    """Rename blocks that another gang may compute too, and annotate gangs again.

    A part of an array has the same keys as the whole, and so has an array within a region. They
    depend on different gangs, so a scheduler that knows both would report a collision.
    Requested keys, those in ``wanted``, stay.

    Dask's fusion drops all annotations; the graph ``emitted`` still has them. Returns a dict, or
    a graph with layers if there are annotations.
    """
    gangs = [layer for layer in emitted.layers.values() if isinstance(layer, GangLayer)]
    # gangs of a graph that was optimized before are finished
    layers = {layer.gang: layer for layer in gangs if layer.gang in graph}
    outs: dict[Any, defaultdict[str, list[Any]]] = {gang: defaultdict(list) for gang in layers}
    for key, task in graph.items():
        for gang in task.dependencies & layers.keys():
            outs[gang][key[0]].append(key)
    names: dict[Any, Any] = {}
    for gang, arrays in outs.items():
        region = layers[gang].region
        for name, keys in arrays.items():
            whole = len(region.members) == 1 and len(keys) == region.nodes[name].blocks
            if not whole and wanted.isdisjoint(keys):
                names |= {key: (f"{name}-{region.token}", *key[1:]) for key in keys}
    tasks = {names.get(key, key): _renamed(key, task, names) for key, task in graph.items()}
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


def _renamed(key: Any, task: GraphNode, names: dict[Any, Any]) -> GraphNode:
    if key in names or not names.keys().isdisjoint(task.dependencies):
        return task.substitute(names, names.get(key))
    return task


@dataclass(frozen=True)
class Plain:
    """Dask's own layers between the inputs and the wanted blocks of a region.

    Their tasks accept blocks that differ from Dask's declaration. ``given`` are the keys of the
    input blocks, and ``wanted`` those of the blocks that others read.
    """

    layers: Mapping[str, Layer]
    given: tuple[Key, ...]
    wanted: tuple[Key, ...]

    @classmethod
    def of(cls, graph: HighLevelGraph, region: Region) -> Plain | None:
        """Return the layers that a region replaces in a graph.

        ``None`` if one is a P2P rechunk: its tasks cannot be renamed.
        """
        inputs = {node.name for node, _ in region.inputs}
        layers: dict[str, Layer] = {}
        waiting = [name for name, _ in region.wanted]
        while waiting:
            name = waiting.pop()
            if name not in inputs and name not in layers:
                layers[name] = graph.layers[name]
                waiting += graph.dependencies[name]
        if any(type(layer).__name__.startswith("P2P") for layer in layers.values()):
            return None
        given = [(node.name, *index) for node, blocks in region.inputs for index in blocks]
        wanted = [(name, *index) for name, blocks in region.wanted for index in blocks]
        return cls(layers, tuple(given), tuple(wanted))

    def __dask_tokenize__(self) -> Any:
        return type(self).__name__, self.wanted

    def tasks(self, prefix: str) -> tuple[dict[Key, GraphNode], list[Key]]:
        """Return the tasks with prefixed names, and the keys of the wanted blocks."""
        every: dict[Any, Any] = {}
        for layer in self.layers.values():
            every.update(layer)
        known = {*every, *self.given}
        tasks = cull(convert_legacy_graph(every, known), self.wanted)
        names = {key: _named(prefix, key) for key in tasks}
        renamed = {names[key]: task.substitute(names, names[key]) for key, task in tasks.items()}
        return renamed, [names[key] for key in self.wanted]

    def blocks(self, given: Mapping[Key, Any]) -> dict[Key, Any]:
        """Compute the wanted blocks from the given ones, in this thread."""
        tasks, keys = self.tasks("plain-")
        inputs = {key: DataNode(key, block) for key, block in given.items()}
        return dict(zip(self.wanted, get_sync(inputs | tasks, keys), strict=True))


def _named(prefix: str, key: Any) -> Any:
    return (prefix + key[0], *key[1:]) if isinstance(key, tuple) else f"{prefix}{key}"
