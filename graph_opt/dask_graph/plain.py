"""Dask's own tasks for a gang that cannot compute its region."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Any

from dask.array.core import Array
from dask.highlevelgraph import HighLevelGraph, Layer

from graph_opt.dask_graph.internals import (
    Alias,
    DataNode,
    GraphNode,
    convert_legacy_graph,
    cull,
    get_sync,
)
from graph_opt.model.piece import Region

Key = tuple[Any, ...]


@dataclass(frozen=True)
class Plain:
    """Dask's own tasks between the inputs and the wanted blocks of a region in a graph.

    They accept blocks that differ from Dask's declaration. ``given`` are the keys of the input
    blocks, and ``wanted`` those of the blocks that others read. The graph may be a sent one: it is
    opened if the tasks are needed. If it ``travels``, it is pickled with its program, without
    further layers.
    """

    graph: HighLevelGraph
    given: tuple[Key, ...]
    wanted: tuple[Key, ...]
    travels: bool = False

    @classmethod
    def of(cls, graph: HighLevelGraph, region: Region, *, travels: bool = False) -> Plain:
        """Return the tasks of a region."""
        given = [(node.name, *index) for node, blocks in region.inputs for index in blocks]
        wanted = [(name, *index) for name, blocks in region.wanted for index in blocks]
        return cls(graph, tuple(given), tuple(wanted), travels)

    def __dask_tokenize__(self) -> Any:
        return type(self).__name__, self.wanted

    def __reduce__(self) -> Any:
        layers = self._layers()
        read = {name: self.graph.dependencies[name] & layers.keys() for name in layers}
        return Plain, (HighLevelGraph(layers, read), self.given, self.wanted, self.travels)

    def _layers(self) -> dict[str, Layer]:
        inputs, waiting = ([key[0] for key in keys] for keys in (self.given, self.wanted))
        layers: dict[str, Layer] = {}
        while waiting:
            name = waiting.pop()
            if name not in inputs and name not in layers:
                layers[name] = self.graph.layers[name]
                waiting += self.graph.dependencies[name]
        return layers

    def tasks(
        self, prefix: str, given: Mapping[Key, Any] = MappingProxyType({})
    ) -> tuple[dict[Key, GraphNode], list[Key]]:
        """Return the tasks with prefixed names, and the keys of the wanted blocks.

        They read the blocks of the inputs by the keys in ``given``, by default their own.
        """
        every: dict[Any, Any] = {}
        for layer in self._layers().values():
            every.update(_by_tasks(layer))
        known = {*every, *self.given}
        tasks = cull(convert_legacy_graph(every, known), self.wanted)
        names = {key: _named(prefix, key) for key in tasks}
        read = {**given, **names}
        renamed = {names[key]: task.substitute(read, names[key]) for key, task in tasks.items()}
        return renamed, [names[key] for key in self.wanted]

    def blocks(self, given: Mapping[Key, Any]) -> dict[Key, Any]:
        """Compute the wanted blocks from the given ones, in this thread."""
        tasks, keys = self.tasks("plain-")
        inputs = {key: DataNode(key, block) for key, block in given.items()}
        return dict(zip(self.wanted, get_sync(inputs | tasks, keys), strict=True))


def _by_tasks(layer: Any) -> Mapping[Any, Any]:
    """Return the tasks of a layer; a P2P rechunk, whose tasks have fixed names, goes by tasks."""
    if type(layer).__name__ != "P2PRechunkLayer":  # by name: distributed may be missing
        tasks: Mapping[Any, Any] = layer
        return tasks
    dtype = layer.collection_annotations["dtype"]
    source = Array({}, layer.name_input, layer.chunks_input, dtype=dtype)
    result = source.rechunk(layer.chunks, method="tasks")
    blocks = product(*(range(len(sizes)) for sizes in layer.chunks))
    names = [((layer.name, *at), (result.name, *at)) for at in blocks]
    return dict(result.dask) | {key: Alias(key, target) for key, target in names}


def _named(prefix: str, key: Any) -> Any:
    return (prefix + key[0], *key[1:]) if isinstance(key, tuple) else f"{prefix}{key}"
