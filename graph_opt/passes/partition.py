r"""Partition a graph into regions: one gang runs each as one program.

::

      ones   f (persisted)             0   levels: a layer that stays with Dask and reads
        \    |                              a member is one level above it
         mul  fft2                     0
           \ /
           mul -> ifft2 -> user's own  0, then 1
                                \
                                 @     1

Members are pieces and Dask's own layers that compute blocks from whole blocks
(:mod:`graph_opt.dask_graph.members`). All members of a region have one level, so no path leads
out of it and back in: all its inputs exist before it starts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

from graph_opt.dask_graph.culling import Culled, by_name, depth_first
from graph_opt.dask_graph.members import calls_others, tasks_of
from graph_opt.dask_graph.parse import ArrayGraph
from graph_opt.dask_graph.piece_layer import PieceLayer
from graph_opt.model.layout import ArrayNode
from graph_opt.pieces.piece import Piece
from graph_opt.pieces.region import Blockwork, Member, Region

Levels = dict[str, int]

STREAM_FRACTION = 0.5
"""A stream writes less than this fraction of the bytes that it reads."""


def partition(
    culled: Culled, arrays: ArrayGraph, local: Collection[str], keys: Collection[Any]
) -> list[Region]:
    """Partition a graph with :class:`PieceLayer` into regions with at least one collective each.

    ``arrays`` are Dask's declarations, ``local`` the layers that a gang can compute without a
    collective, and ``keys`` the requested blocks.
    """
    graph = culled.graph
    pieces = {name for name, layer in graph.layers.items() if isinstance(layer, PieceLayer)}
    members = pieces | (graph.layers.keys() & set(local))
    order = depth_first(graph.dependencies)
    requested = by_name(keys)
    levels = _levels(culled, order, members, requested)
    found = []
    for component in _connected(graph, order, levels, members):
        names = _without_streams(component, culled, arrays, pieces)
        if not pieces.isdisjoint(names):
            found.append(_region(names, culled, arrays, requested))
    return found


def _levels(
    culled: Culled, order: list[str], members: set[str], requested: Collection[str]
) -> Levels:
    """Count, on the paths to each layer, how often a layer that is no member reads a member.

    Members that only members read have the level of their readers.
    """
    graph, readers = culled.graph, culled.readers
    levels: Levels = {}
    for name in order:
        above = members if name not in members else set()
        levels[name] = max(
            (levels[other] + (other in above) for other in graph.dependencies[name]), default=0
        )
    for name in reversed(order):
        if name in members and name not in requested and readers[name] <= members:
            lowest = min((levels[reader] for reader in readers[name]), default=0)
            levels[name] = max(levels[name], lowest)
    return levels


def _connected(
    graph: HighLevelGraph, order: list[str], levels: Levels, members: set[str]
) -> list[list[str]]:
    """Group members of one level and with equal annotations that read each other."""
    parents: dict[str, str] = {}

    def head(name: str) -> str:
        while parents[name] != name:
            parents[name] = parents[parents[name]]
            name = parents[name]
        return name

    def kind(name: str) -> tuple[int, Any]:
        return levels[name], graph.layers[name].annotations or {}

    for name in filter(members.__contains__, order):
        parents[name] = name
        for other in graph.dependencies[name] & members:
            if kind(other) == kind(name):
                parents[head(name)] = head(other)
    groups: dict[str, list[str]] = {}
    for name in parents:
        groups.setdefault(head(name), []).append(name)
    return list(groups.values())


def _without_streams(
    names: list[str], culled: Culled, arrays: ArrayGraph, pieces: set[str]
) -> list[str]:
    """Leave streams to Dask: members before any collective that reduce much to little.

    Dask reads, reduces and frees block after block, while a gang would hold all blocks. A layer
    with other readers is no stream: its blocks must exist anyway.
    """
    graph, readers = culled.graph, culled.readers
    kept = set(names)
    collective: set[str] = set()
    for name in names:
        needed = graph.dependencies[name]
        if name in pieces or needed & collective:
            collective.add(name)
            continue
        cone = _cone(name, graph, kept)
        sources = set().union(*(graph.dependencies[each] for each in cone)) - cone
        shared = any(readers[each] & (kept - cone) for each in (cone - {name}) | sources)
        read_bytes = sum(_node(arrays, each).nbytes for each in needed)
        if not shared and _node(arrays, name).nbytes < STREAM_FRACTION * read_bytes:
            kept -= cone
    return [name for name in names if name in kept]


def _cone(name: str, graph: HighLevelGraph, inside: set[str]) -> set[str]:
    """Return a layer and all members that it depends on, directly or not."""
    cone, stack = {name}, [name]
    while stack:
        new = (graph.dependencies[stack.pop()] & inside) - cone
        cone |= new
        stack += new
    return cone


def _region(
    names: list[str], culled: Culled, arrays: ArrayGraph, requested: Mapping[str, set[Any]]
) -> Region:
    """Return the region of some layers; wanted blocks are requested, or others read them."""
    members = _corrected([_member(name, culled, arrays) for name in names])
    inside = set(names)
    wanted = {}
    for member in members:
        name = member.output.name
        read = [culled.reads[other] for other in culled.readers[name] - inside]
        if name in requested:
            read.append(requested[name])
        blocks = tuple(
            index for index in member.computed if any((name, *index) in each for each in read)
        )
        if blocks:
            wanted[name] = blocks
    return Region(members, tuple(wanted.items()), culled.graph.layers[names[0]].annotations)


def _corrected(members: Sequence[Member]) -> tuple[Member, ...]:
    """Take the chunk sizes of arrays from the collectives that read them.

    Dask declares one value for a reduction with several, such as ``topk``.
    """
    pieces = [member for member in members if isinstance(member, Piece)]
    read = {node.name: node for piece in pieces for node in piece.inputs}
    return tuple(
        replace(member, output=read.get(member.output.name, member.output))
        if isinstance(member, Blockwork)
        else member
        for member in members
    )


def _member(name: str, culled: Culled, arrays: ArrayGraph) -> Member:
    graph = culled.graph
    layer = graph.layers[name]
    if isinstance(layer, PieceLayer):
        return layer.piece
    output = _node(arrays, name)
    inputs = tuple(_node(arrays, other) for other in sorted(graph.dependencies[name]))
    if not isinstance(layer, Blockwise):
        layer = MaterializedLayer(dict(tasks_of(graph, name)))
    read = sorted(culled.needs[name].items())
    needs = {key[1:]: tuple((each[0], each[1:]) for each in sorted(keys)) for key, keys in read}
    return Blockwork(output, inputs, needs, layer, calls_others(layer))


def _node(arrays: ArrayGraph, name: str) -> ArrayNode:
    node = arrays.node(name)
    if node is None:
        raise LookupError(f"expected a declaration of the array {name}, got none")
    return node
