"""Culling that keeps the names of layers, and returns the keys that each of them reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dask.blockwise import Blockwise
from dask.core import reverse_dict
from dask.highlevelgraph import HighLevelGraph, Layer

Key = Any


@dataclass(frozen=True)
class Culled:
    """A graph with only the needed layers and tasks.

    ``reads`` are the keys of other layers that each layer reads, and ``needs`` the keys that
    each of its tasks reads.
    """

    graph: HighLevelGraph
    reads: dict[str, set[Key]]
    needs: dict[str, Mapping[Key, set[Key]]]

    @cached_property
    def readers(self) -> Mapping[str, set[str]]:
        """The layers that read each layer."""
        readers: Mapping[str, set[str]] = reverse_dict(self.graph.dependencies)
        return readers


def cull(graph: HighLevelGraph, keys: Collection[Key]) -> Culled:
    """Leave out all tasks that ``keys`` do not need.

    Dask's own culling renames layers and drops the dependencies between them.
    """
    legacy = any(layer.has_legacy_tasks for layer in graph.layers.values())
    known: set[Key] = graph.get_all_external_keys() if legacy else set()
    needed = set(keys)
    named = by_name(needed)
    layers: dict[str, Layer] = {}
    reads: dict[str, set[Key]] = {}
    needs: dict[str, Mapping[Key, set[Key]]] = {}
    for name in reversed(depth_first(graph.dependencies)):
        layer = graph.layers[name]
        wanted = needed.intersection(layer.get_output_keys())
        if isinstance(layer, Blockwise):
            wanted |= named[name]  # of chunks (0, 1) it lists one block, but makes both
        if wanted:
            layers[name], needs[name] = layer.cull(wanted, known)
            alike = {id(read): read for read in needs[name].values()}  # a piece's tasks share one
            reads[name] = set().union(*alike.values()) - needs[name].keys()
            needed |= reads[name]
            for other, read in by_name(reads[name]).items():
                named[other] |= read
    between = {name: graph.dependencies[name] & layers.keys() for name in layers}
    return Culled(HighLevelGraph(layers, between), reads, needs)


def by_name(keys: Collection[Key]) -> defaultdict[Any, set[Key]]:
    """Group keys by the name of their array."""
    found: defaultdict[Any, set[Key]] = defaultdict(set)
    for key in keys:
        found[key[0] if isinstance(key, tuple) else key].add(key)
    return found


def depth_first(dependencies: Mapping[str, AbstractSet[str]]) -> list[str]:
    """Order layers, each after all that it reads and right before its first reader.

    Late results occupy memory for a shorter time. The order depends only on names, not on the
    iteration of mappings and sets, so every process derives the same program and gang name.
    ``dependencies`` are the layers that each layer reads, without cycles.
    """
    read = set().union(*dependencies.values())
    stack = sorted(dependencies.keys() - read, reverse=True)
    order: dict[str, None] = {}
    while stack:
        missing = dependencies[stack[-1]] - order.keys()
        if missing and stack[-1] not in order:
            stack += sorted(missing, reverse=True)
        else:
            order.setdefault(stack.pop())
    return list(order)
