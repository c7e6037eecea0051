r"""Form regions: the work of one gang each.

One gang runs a region as one program::

      ones   f (persisted)             0   levels: a layer that stays with Dask and reads
        \    |                              a member is one level above it
         mul  fft2                     0
           \ /
           mul -> ifft2 -> user's own  0, then 1
                                \
                                 @     1

Members are pieces and Dask's own layers that compute blocks from whole blocks
(:mod:`graph_opt.dask_graph.parse`). All members of a region have one level, so no path leads
out of it and back in: all its inputs exist before it starts.

Regions that read the same arrays, and do not depend on each other, are for one gang too::

    x.sum()  (x * y).sum()          both read x: one launch, one answer
    z = x @ y;  z.persist() + x     the second reads the first, through other layers: two
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from graphlib import TopologicalSorter
from itertools import chain
from typing import Any

from graph_opt.model.piece import Region
from graph_opt.model.reader import Graph, Key

Levels = dict[str, int]
Needed = Mapping[str, AbstractSet[str]]

STREAM_FRACTION = 0.5
"""A stream writes less than this fraction of the bytes that it reads."""


def partition(
    graph: Graph, skipped: Callable[[list[str]], bool] = lambda names: False
) -> list[Region]:
    """Partition a graph with pieces into regions.

    A region without a collective is work of Dask's own that a gang can do. There is none of layers
    that are ``skipped``: a region takes estimates of all its tasks.
    """
    pieces = {name for name in graph.dependencies if graph.piece(name) is not None}
    members = pieces | (graph.dependencies.keys() & graph.local)
    order = depth_first(graph.dependencies)
    requested = by_name(graph.keys)
    levels = _levels(graph, order, members, requested)
    regions = []
    for component in _connected(graph, order, levels, members):
        names = _without_streams(component, graph, pieces)
        if names and not (pieces.isdisjoint(names) and skipped(names)):
            regions.append(region_of(names, graph, requested))
    return regions


def _levels(
    graph: Graph, order: list[str], members: set[str], requested: Collection[str]
) -> Levels:
    """Count, on the paths to each layer, how often a layer that is no member reads a member.

    Members that only members read have the level of their readers.
    """
    levels: Levels = {}
    for name in order:
        above = members if name not in members else set()
        levels[name] = max(
            (levels[other] + (other in above) for other in graph.dependencies[name]), default=0
        )
    for name in reversed(order):
        if name in members and name not in requested and graph.readers[name] <= members:
            lowest = min((levels[reader] for reader in graph.readers[name]), default=0)
            levels[name] = max(levels[name], lowest)
    return levels


def _connected(
    graph: Graph, order: list[str], levels: Levels, members: set[str]
) -> list[list[str]]:
    """Group members of one level and with equal annotations that read each other."""
    parents: dict[str, str] = {}

    def head(name: str) -> str:
        while parents[name] != name:
            parents[name] = parents[parents[name]]
            name = parents[name]
        return name

    def kind(name: str) -> tuple[int, Any]:
        return levels[name], graph.annotations(name)

    for name in filter(members.__contains__, order):
        parents[name] = name
        for other in graph.dependencies[name] & members:
            if kind(other) == kind(name):
                parents[head(name)] = head(other)
    groups: dict[str, list[str]] = {}
    for name in parents:
        groups.setdefault(head(name), []).append(name)
    return list(groups.values())


def _without_streams(names: list[str], graph: Graph, pieces: set[str]) -> list[str]:
    """Leave streams to Dask: members before any collective that reduce much to little.

    Dask reads, reduces and frees block after block, while a gang would hold all blocks. A layer
    with other readers, or of blocks in memory, is no stream: its blocks must exist anyway.
    """
    kept = set(names)
    collective: set[str] = set()
    for name in names:
        needed = graph.dependencies[name]
        if name in pieces or needed & collective:
            collective.add(name)
            continue
        cone = _cone(name, graph, kept)
        sources = set().union(*(graph.dependencies[each] for each in cone)) - cone
        shared = any(graph.readers[each] & (kept - cone) for each in (cone - {name}) | sources)
        shared |= bool(sources) and all(map(graph.is_stored, sources))
        read_bytes = sum(graph.node(each).nbytes for each in needed)
        if not shared and graph.node(name).nbytes < STREAM_FRACTION * read_bytes:
            kept -= cone
    return [name for name in names if name in kept]


def _cone(name: str, graph: Graph, inside: set[str]) -> set[str]:
    """Return a layer and all members that it depends on, directly or not."""
    cone, stack = {name}, [name]
    while stack:
        new = (graph.dependencies[stack.pop()] & inside) - cone
        cone |= new
        stack += new
    return cone


def region_of(names: Sequence[str], graph: Graph, requested: Mapping[str, set[Any]]) -> Region:
    """Return the region of some layers; wanted blocks are requested, or others read them."""
    inside = set(names)
    pieces = [piece for name in names if (piece := graph.piece(name))]
    known = {node.name: node for piece in pieces for node in piece.inputs}
    # Dask declares one value for a reduction with several, such as topk; collectives know more
    members = tuple(graph.piece(name) or graph.work(name, known.get(name)) for name in names)
    wanted = {}
    for member in members:
        name = member.output.name
        read = set(requested.get(name, ()))
        read.update(*(graph.reads(other) for other in graph.readers[name] - inside))
        blocks = tuple([index for index in member.computed if (name, *index) in read])
        if blocks:
            wanted[name] = blocks
    return Region(members, tuple(wanted.items()), graph.annotations(names[0]) or None)


def together(regions: Sequence[Region], needed: Needed) -> list[list[Region]]:
    """Group regions with common inputs and equal annotations that do not depend on each other.

    ``needed`` are the layers that each layer reads.
    Regions with functions of users stay alone: these take unknown time, and may fail.
    """
    groups: list[list[Region]] = []
    for i, region in enumerate(regions):
        others = [*groups, *([region] for region in regions[i + 1 :])]
        for group in groups:
            if _share(group, region) and not _depend([*group, region], others, needed):
                group.append(region)
                break
        else:
            groups.append([region])
    return groups


def joined(regions: Sequence[Region]) -> Region:
    """Return one region of several that do not depend on each other."""
    members = tuple(chain.from_iterable(region.members for region in regions))
    wanted = tuple(chain.from_iterable(region.wanted for region in regions))
    return Region(members, wanted, regions[0].annotations)


def _share(group: Sequence[Region], region: Region) -> bool:
    """Whether a region may join a group, and reads an array that the group reads."""
    first, read = group[0], {node.name for node, _ in region.inputs}
    if any(work.once for each in (first, region) for work in each.works):
        return False
    if (first.annotations or {}) != (region.annotations or {}):
        return False
    return any(node.name in read for each in group for node, _ in each.inputs)


def _depend(some: Sequence[Region], groups: Iterable[Sequence[Region]], needed: Needed) -> bool:
    """Whether a path leads from one of these regions to another, if each group is one node."""
    inside = set(chain.from_iterable(region.nodes for region in some))
    waiting: set[str] = set()
    for region in some:
        read = set(chain.from_iterable(needed[name] for name in region.nodes))
        waiting |= read - region.nodes.keys()
    homes: dict[str, set[str]] = {}
    for group in groups:
        names = set(chain.from_iterable(region.nodes for region in group))
        homes.update(dict.fromkeys(names, names))
    known: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in inside:
            return True
        names = homes.get(name, {name})
        known |= names
        waiting |= set(chain.from_iterable(needed[name] for name in names)) - known
    return False


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


def in_order(needs: Mapping[Key, Collection[Key]]) -> list[Key]:
    """Return keys after all that they need, in the same order in every process."""
    keys = sorted(needs, key=repr)
    return list(
        TopologicalSorter({key: sorted(needs[key], key=repr) for key in keys}).static_order()
    )


def by_name(keys: Collection[Key]) -> defaultdict[str, set[Key]]:
    """Group keys by the name of their array."""
    grouped: defaultdict[str, set[Key]] = defaultdict(set)
    for key in keys:
        grouped[key[0] if isinstance(key, tuple) else key].add(key)
    return grouped


def name_of(key: Key) -> str:
    """Return the name of the array of a block, or of the layer of another task."""
    return str(key[0] if isinstance(key, tuple) else key)
