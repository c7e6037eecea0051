r"""Which parts of a graph one gang runs as one program.

::

      ones   f (persisted)             0   levels: what a gang makes and Dask goes on
        \    |                              with is one more for whoever reads that
         mul  fft2                     0
           \ /
           mul -> ifft2 -> user's own  0, then 1
                                \
                                 @     1

Members are the pieces that rules have found, and Dask's own layers that make blocks from
whole blocks (:mod:`graph_opt.dask_graph.members`). A region has members of one level, so no
path leads out of it and back in: all it reads is there before it starts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dask.blockwise import Blockwise
from dask.core import reverse_dict
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

from graph_opt.dask_graph.culling import Culled
from graph_opt.dask_graph.depth_first import depth_first
from graph_opt.dask_graph.members import calls_others, tasks_of
from graph_opt.dask_graph.parse import ArrayGraph
from graph_opt.dask_graph.piece_layer import PieceLayer
from graph_opt.model.node import ArrayNode
from graph_opt.pieces.region import Blockwork, Member, Region

Levels = dict[str, int]

LITTLE = 0.5
"""What makes less than this share of the bytes that it reads is a stream for Dask."""


def partition(
    culled: Culled, arrays: ArrayGraph, local: Collection[str], keys: Collection[Any]
) -> list[Region]:
    """Partition a graph into regions.

    Parameters
    ----------
    culled : Culled
        A graph with a :class:`PieceLayer` for each piece.
    arrays : ArrayGraph
        Facts of the arrays that have a layer, as Dask noted them.
    local : collection of str
        Names of the layers that a gang can carry out without a collective.
    keys : collection of key
        Blocks that somebody asked for.

    Returns
    -------
    list of Region
        Each with a collective at least.
    """
    graph = culled.graph
    pieces = {name for name, layer in graph.layers.items() if isinstance(layer, PieceLayer)}
    members = pieces | (graph.layers.keys() & set(local))
    order = depth_first(graph.dependencies)
    readers = reverse_dict(graph.dependencies)
    asked = _by_array(keys)
    levels = _levels(graph, order, members)
    _sink(order, readers, levels, members, asked)
    found = []
    for component in _connected(graph, order, levels, members):
        names = _without_streams(component, graph, arrays, readers, pieces)
        if not pieces.isdisjoint(names):
            found.append(_region(names, culled, arrays, readers, asked))
    return found


def _by_array(keys: Collection[Any]) -> dict[str, set[Any]]:
    """Return the blocks that somebody asked for, those of each array together."""
    found: dict[str, set[Any]] = {}
    for key in keys:
        if isinstance(key, tuple):
            found.setdefault(key[0], set()).add(key)
    return found


def _levels(graph: HighLevelGraph, order: list[str], members: set[str]) -> Levels:
    """Count, on the way to each layer, how often a member is read by something else."""
    levels: Levels = {}
    for name in order:
        leaves = name not in members
        levels[name] = max(
            (levels[other] + (leaves and other in members) for other in graph.dependencies[name]),
            default=0,
        )
    return levels


def _sink(
    order: list[str],
    readers: Mapping[str, set[str]],
    levels: Levels,
    members: set[str],
    asked: Collection[str],
) -> None:
    """Make what nothing was read for where it is read."""
    for name in reversed(order):
        mine = readers[name]
        if name in members and name not in asked and mine and mine <= members:
            levels[name] = max(levels[name], min(levels[reader] for reader in mine))


def _connected(
    graph: HighLevelGraph, order: list[str], levels: Levels, members: set[str]
) -> list[list[str]]:
    """Join members of one level, and of the same annotations, that read each other."""
    parents: dict[str, str] = {}

    def head(name: str) -> str:
        while parents[name] != name:
            parents[name] = parents[parents[name]]
            name = parents[name]
        return name

    for name in order:
        if name not in members:
            continue
        parents[name] = name
        mine = graph.layers[name].annotations or {}
        for other in graph.dependencies[name]:
            alike = (
                other in members
                and levels[other] == levels[name]
                and (graph.layers[other].annotations or {}) == mine
            )
            if alike:
                parents[head(name)] = head(other)
    groups: dict[str, list[str]] = {}
    for name in parents:
        groups.setdefault(head(name), []).append(name)
    return list(groups.values())


def _without_streams(
    names: list[str],
    graph: HighLevelGraph,
    arrays: ArrayGraph,
    readers: Mapping[str, set[str]],
    pieces: set[str],
) -> list[str]:
    """Leave to Dask what makes little of much before any collective.

    Dask reads, reduces and lets go of block after block, where a gang would hold all of
    them. What is reduced but needed otherwise too, is there anyway.
    """
    left = set(names)
    after: set[str] = set()
    for name in names:
        needed = graph.dependencies[name]
        if name in pieces or needed & after:
            after.add(name)
            continue
        cone = _cone(name, graph, left)
        sources = set().union(*(graph.dependencies[each] for each in cone)) - cone
        shared = any(readers[each] & (left - cone) for each in (cone - {name}) | sources)
        much = sum(_node(arrays, each).nbytes for each in needed)
        if not shared and _node(arrays, name).nbytes < LITTLE * much:
            left -= cone
    return [name for name in names if name in left]


def _cone(name: str, graph: HighLevelGraph, inside: set[str]) -> set[str]:
    """Return a layer and all members that it is made of."""
    cone, stack = {name}, [name]
    while stack:
        new = (graph.dependencies[stack.pop()] & inside) - cone
        cone |= new
        stack += new
    return cone


def _region(
    names: list[str],
    culled: Culled,
    arrays: ArrayGraph,
    readers: Mapping[str, set[str]],
    asked: Mapping[str, set[Any]],
) -> Region:
    """Make the region of some layers; blocks of theirs that others read or ask for are wanted."""
    members = _as_read([_member(name, culled, arrays) for name in names])
    inside = set(names)
    wanted = {}
    for member in members:
        name = member.output.name
        read = [culled.reads[other] for other in readers[name] - inside]
        if name in asked:
            read.append(asked[name])
        blocks = tuple(
            index for index in member.computed if any((name, *index) in each for each in read)
        )
        if blocks:
            wanted[name] = blocks
    return Region(members, tuple(wanted.items()), culled.graph.layers[names[0]].annotations)


def _as_read(members: Sequence[Member]) -> tuple[Member, ...]:
    """Correct the chunk sizes of arrays by what collectives know of them.

    Of a reduction that keeps several values, ``topk`` for one, Dask notes one.
    """
    pieces = [member for member in members if not isinstance(member, Blockwork)]
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
        facts = ArrayGraph(graph.layers, graph.dependencies, frozenset())
        layer = MaterializedLayer(tasks_of(facts, name))
    read = sorted(culled.needs[name].items())
    needs = {key[1:]: tuple((each[0], each[1:]) for each in sorted(keys)) for key, keys in read}
    return Blockwork(output, inputs, needs, layer, calls_others(layer))


def _node(arrays: ArrayGraph, name: str) -> ArrayNode:
    node = arrays.node(name)
    if node is None:
        raise LookupError(f"nothing is known of the array {name}")
    return node
