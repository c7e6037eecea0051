r"""Passes over a graph: find pieces, replace Dask's layers by them, check, and form regions.

One gang runs a region as one program::

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

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer

from graph_opt.dask_graph.blockwork import blockwork
from graph_opt.dask_graph.clusters import Calls
from graph_opt.dask_graph.forms import node_of
from graph_opt.dask_graph.fusing import fuse_expressions, may_fuse
from graph_opt.dask_graph.internals import DataNode, GraphNode
from graph_opt.dask_graph.layers import PieceLayer
from graph_opt.dask_graph.parse import (
    ArrayGraph,
    Culled,
    Rule,
    block_function,
    by_name,
    depth_first,
    function_name,
)
from graph_opt.model.layout import ArrayNode, Declined
from graph_opt.model.piece import Member, Piece, Region

Levels = dict[str, int]

OPTED_OUT = "dask.annotate(dgpu=False)"
"""Why a layer stays with Dask if the user says so."""

STREAM_FRACTION = 0.5
"""A stream writes less than this fraction of the bytes that it reads."""


@dataclass(frozen=True)
class Matches:
    """Pieces to rewrite, and pieces that stay with Dask."""

    pieces: tuple[Piece, ...]
    declined: tuple[Declined, ...]


def find(graph: ArrayGraph, rules: Collection[Rule]) -> Matches:
    """Try the rules on every layer at which they may start, in this order, until one matches."""
    pieces: list[Piece] = []
    declined: list[Declined] = []
    for name, layer in graph.layers.items():
        function = block_function(graph, name)
        called = "" if function is None else function_name(function)
        for rule in rules:
            found = rule.match(graph, name) if rule.starts(name, layer, called) else None
            if isinstance(found, Declined):
                declined.append(found)
            elif found is not None:
                if any(map(graph.is_out, found.layers)):
                    declined.append(Declined(found.output.name, OPTED_OUT))
                else:
                    pieces.append(found)
                break
    return Matches(tuple(pieces), tuple(declined))


def insert(graph: HighLevelGraph, pieces: Iterable[Piece]) -> HighLevelGraph:
    """Replace the layers of each piece by a :class:`PieceLayer`."""
    layers: dict[str, Layer] = dict(graph.layers)
    dependencies: dict[str, set[str]] = {k: set(v) for k, v in graph.dependencies.items()}
    for piece in pieces:
        annotations: dict[str, object] = {}
        for name in piece.layers:
            annotations.update(layers.pop(name).annotations or {})
            del dependencies[name]
        layers[piece.output.name] = PieceLayer(piece, annotations=annotations or None)
        dependencies[piece.output.name] = {node.name for node in piece.inputs}
    return HighLevelGraph(layers, dependencies)


class IllegalGraphError(Exception):
    """A pass returned an invalid graph."""


def check(graph: HighLevelGraph) -> HighLevelGraph:
    """Return ``graph`` if it is legal, raise :class:`IllegalGraphError` if not."""
    for name, needed in graph.dependencies.items():
        if name not in graph.layers:
            raise IllegalGraphError(f"layer {name} has dependencies but does not exist")
        missing = needed - graph.layers.keys()
        if missing:
            raise IllegalGraphError(f"layer {name} reads {sorted(missing)}, which do not exist")
    for layer in graph.layers.values():
        if isinstance(layer, PieceLayer):
            fault = layer.piece.fault()
            if fault is None and not layer.wanted <= set(layer.piece.computed):
                fault = "blocks are wanted that are not computed"
            if fault is not None:
                raise IllegalGraphError(f"{layer.piece.output.name}: {fault}")
    return graph


def combine(
    graph: HighLevelGraph,
    arrays: ArrayGraph,
    local: Collection[str],
    keys: Collection[Any],
    calls: Calls,
) -> HighLevelGraph:
    """Replace layers by kernels, as :func:`fuse_expressions`, if any may become one.

    ``arrays`` say whether kernels are wanted.
    """
    if not (arrays.fused and may_fuse(graph, arrays)):
        return graph
    return fuse_expressions(graph, arrays, local, keys, calls)


def partition(
    culled: Culled,
    arrays: ArrayGraph,
    local: Collection[str],
    keys: Collection[Any],
    skipped: Callable[[list[str]], bool] = lambda names: False,
) -> list[Region]:
    """Partition a graph with :class:`PieceLayer` into regions.

    A region without a collective is work of Dask's own that a gang can do. There is none of layers
    that are ``skipped``: a region takes estimates of all its tasks.
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
        if names and not (pieces.isdisjoint(names) and skipped(names)):
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
    with other readers, or of blocks in memory, is no stream: its blocks must exist anyway.
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
        shared |= bool(sources) and all(is_stored(graph.layers[each]) for each in sources)
        read_bytes = sum(node_of(arrays, each).nbytes for each in needed)
        if not shared and node_of(arrays, name).nbytes < STREAM_FRACTION * read_bytes:
            kept -= cone
    return [name for name in names if name in kept]


def is_stored(layer: Layer) -> bool:
    """Whether a layer has blocks, or futures of them, in place of tasks, as after ``persist``."""
    if not isinstance(layer, MaterializedLayer):
        return False
    block = next(iter(layer.values()), ())
    return isinstance(block, DataNode) or not isinstance(block, GraphNode | tuple | list)


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
    layers, inside = culled.graph.layers, set(names)
    pieces = [layer.piece for name in names if isinstance(layer := layers[name], PieceLayer)]
    known = {node.name: node for piece in pieces for node in piece.inputs}
    members = tuple(_member(name, culled, arrays, known) for name in names)
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
    return Region(members, tuple(wanted.items()), layers[names[0]].annotations)


def _member(
    name: str, culled: Culled, arrays: ArrayGraph, known: Mapping[str, ArrayNode]
) -> Member:
    """Return a layer as a member; ``known`` are the inputs of collectives, with chunk sizes.

    Dask declares one value for a reduction with several, such as ``topk``.
    """
    layer = culled.graph.layers[name]
    if isinstance(layer, PieceLayer):
        return layer.piece
    return blockwork(name, culled, arrays, known.get(name))
