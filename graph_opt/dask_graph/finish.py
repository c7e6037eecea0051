"""After Dask's own passes: names and annotations that these can not keep."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

from graph_opt.dask_graph.emit import GangLayer
from graph_opt.dask_graph.internals import GraphNode

Graph = dict[Any, GraphNode]


def finish(
    graph: Mapping[Any, GraphNode],
    wanted: Collection[Any],
    gangs: Iterable[GangLayer],
) -> Any:
    """Rename blocks that another gang may make too, and annotate gangs again.

    Parameters
    ----------
    graph : mapping of key to task
        What Dask's fusion left; it drops all annotations.
    wanted : collection of key
        The keys somebody asked for, which must stay.
    gangs : iterable of GangLayer
        The layers as they were before Dask's passes.

    Returns
    -------
    dict or HighLevelGraph
        A graph with layers only if there are annotations to carry.
    """
    tasks = dict(graph)
    layers: dict[str, MaterializedLayer] = {}
    for layer in gangs:  # gangs of a graph that was optimized before are finished
        key = layer.gang
        if key not in tasks:
            continue
        outs: list[Any] = []
        for name, mine in _by_array(tasks, key).items():
            whole = len(layer.region.members) == 1 and len(mine) == layer.region.nodes[name].blocks
            outs += _rename(tasks, mine, wanted, f"{name}-{key[0][-8:]}") if not whole else mine
        if layer.annotations:
            members = (key, *tasks[key].dependencies, *outs)
            own = {member: tasks.pop(member) for member in members}
            layers[key[0]] = MaterializedLayer(own, annotations=layer.annotations)
    if not layers:
        return tasks
    layers["rest"] = MaterializedLayer(tasks)
    names = set(layers)
    return HighLevelGraph(layers, {name: names - {name} for name in names})


def _by_array(tasks: Graph, gang: Any) -> dict[str, list[Any]]:
    outs: dict[str, list[Any]] = {}
    for key, task in tasks.items():
        if gang in task.dependencies:
            outs.setdefault(key[0], []).append(key)
    return outs


def _rename(tasks: Graph, outs: list[Any], wanted: Collection[Any], name: str) -> list[Any]:
    """Keep blocks of a part of an array, or of one within a region, apart from the whole's.

    Both have the same keys and another gang behind them, which the scheduler
    would call a collision when it knows both.
    """
    if any(out in wanted for out in outs):
        return outs
    names: dict[Any, Any] = {out: (name, *out[1:]) for out in outs}
    for key, task in list(tasks.items()):
        if key in names:
            tasks[names[key]] = tasks.pop(key).substitute({}, key=names[key])
        elif not names.keys().isdisjoint(task.dependencies):
            tasks[key] = task.substitute(names)
    return list(names.values())
