"""After Dask's own passes: unique names for blocks of gangs, and annotations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

from graph_opt.dask_graph.emit import GangLayer
from graph_opt.dask_graph.internals import GraphNode


def finish(
    graph: Mapping[Any, GraphNode],
    wanted: AbstractSet[Any],
    gangs: Iterable[GangLayer],
) -> Any:
    """Rename blocks that another gang may compute too, and annotate gangs again.

    A part of an array has the same keys as the whole, and so has an array within a region. They
    depend on different gangs, so a scheduler that knows both would report a collision.
    Requested keys, those in ``wanted``, stay.

    Dask's fusion drops all annotations; ``gangs`` are the layers before it. Returns a dict, or
    a graph with layers if there are annotations.
    """
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
                names |= {key: (f"{name}-{gang[0][-8:]}", *key[1:]) for key in keys}
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
