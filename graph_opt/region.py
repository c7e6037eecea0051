r"""Regions: connected parts of a graph that one gang runs as one program.

::

      ones   f (persisted)             0   levels: what a gang makes and Dask goes on
        \    |                              with is one more for whoever reads that
         mul  fft2                     0
           \ /
           mul -> ifft2 -> user's own  0, then 1
                                \
                                 @     1

Members are the pieces that rules have found, and Dask's own layers that make blocks from
whole blocks (:mod:`graph_opt.members`). A region has members of one level, so no path leads
out of it and back in: all it reads is there before it starts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dask._task_spec import GraphNode
from dask.core import reverse_dict
from dask.highlevelgraph import HighLevelGraph
from dask.tokenize import tokenize

from graph_opt.culling import Culled
from graph_opt.layout import Index
from graph_opt.members import tasks_of
from graph_opt.node import ArrayNode, label
from graph_opt.parse import ArrayGraph
from graph_opt.piece import Piece
from graph_opt.piece_layer import PieceLayer

Levels = dict[str, int]


@dataclass(frozen=True)
class Blockwork:
    """One of Dask's layers: each block of ``output`` is made by a task from whole blocks.

    Parameters
    ----------
    output : ArrayNode
        The array that is made.
    inputs : tuple of ArrayNode
        The arrays that are read.
    tasks : mapping of tuple of int to task
        The task of each block that is made.
    """

    output: ArrayNode
    inputs: tuple[ArrayNode, ...]
    tasks: Mapping[Index, GraphNode]

    @property
    def label(self) -> str:
        """The name that a user is told."""
        return label(self.output.name)

    @property
    def computed(self) -> tuple[Index, ...]:
        """The blocks that are made, in row-major order."""
        return tuple(sorted(self.tasks))

    @cached_property
    def needs(self) -> dict[Index, tuple[tuple[str, Index], ...]]:
        """For each block the blocks that it is made from: name of the array, and place."""
        return {
            index: tuple((key[0], key[1:]) for key in sorted(self.tasks[index].dependencies))
            for index in self.computed
        }

    def __dask_tokenize__(self) -> Any:
        return self.output.name, self.computed


Member = Piece | Blockwork


@dataclass(frozen=True)
class Region:
    """Members in an order in which they can be carried out, and what others read of them.

    Parameters
    ----------
    members : tuple of Piece or Blockwork
        What is done.
    wanted : tuple of (str, tuple of tuple of int)
        Names of the arrays that somebody outside reads, and which of their blocks.
    annotations : mapping of str to value, optional
        Those of Dask, the same for all members.
    """

    members: tuple[Member, ...]
    wanted: tuple[tuple[str, tuple[Index, ...]], ...]
    annotations: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, piece: Piece, annotations: Mapping[str, Any] | None = None) -> Region:
        """Return the region of one piece, of which all that is made is wanted."""
        return cls((piece,), ((piece.output.name, tuple(piece.computed)),), annotations)

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The members that are collectives."""
        return tuple(member for member in self.members if not isinstance(member, Blockwork))

    @cached_property
    def nodes(self) -> dict[str, ArrayNode]:
        """The arrays that are made, by name."""
        return {member.output.name: member.output for member in self.members}

    @cached_property
    def inputs(self) -> tuple[tuple[ArrayNode, tuple[Index, ...]], ...]:
        """The arrays that are read, and which of their blocks, in row-major order."""
        nodes: dict[str, ArrayNode] = {}
        read: dict[str, set[Index]] = {}
        for member in self.members:
            for node in member.inputs:
                if node.name not in self.nodes:
                    nodes.setdefault(node.name, node)
                    read.setdefault(node.name, set())
            for name, index in _read(member):
                if name not in self.nodes:
                    read[name].add(index)
        return tuple((nodes[name], tuple(sorted(blocks))) for name, blocks in read.items())

    @property
    def operands(self) -> frozenset[str]:
        """Names of the arrays that collectives read."""
        return frozenset(node.name for piece in self.pieces for node in piece.inputs)

    @property
    def tasks(self) -> int:
        """Tasks that the scheduler sees: blocks in, blocks out, and the gang."""
        blocks = [*(blocks for _, blocks in self.inputs), *(blocks for _, blocks in self.wanted)]
        return sum(map(len, blocks)) + 1

    @property
    def label(self) -> str:
        """The names of its collectives."""
        return ", ".join(piece.label for piece in self.pieces)

    def split(self) -> tuple[Region, Region]:
        """Return two regions, of the first half of the members and of the others."""
        middle = len(self.members) // 2
        first, second = self.members[:middle], self.members[middle:]
        read = {(name, index) for member in second for name, index in _read(member)}
        read |= {(name, index) for name, blocks in self.wanted for index in blocks}
        passed_on = {
            name: tuple(index for index in member.computed if (name, index) in read)
            for member in first
            for name in [member.output.name]
        }
        kept = {member.output.name for member in second}
        return (
            Region(first, tuple((n, b) for n, b in passed_on.items() if b), self.annotations),
            Region(second, tuple((n, b) for n, b in self.wanted if n in kept), self.annotations),
        )

    @cached_property
    def token(self) -> str:
        """Tells regions apart: by their members, which blocks they make, and what is wanted."""
        return str(tokenize(*self.members, self.wanted))


def _read(member: Member) -> Iterable[tuple[str, Index]]:
    if isinstance(member, Blockwork):
        return (need for needs in member.needs.values() for need in needs)
    pairs = zip(member.inputs, member.staged, strict=True)
    return ((node.name, index) for node, indices in pairs for index in indices)


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
    order = graph._toposort_layers()
    readers = reverse_dict(graph.dependencies)
    asked = {key[0] for key in keys if isinstance(key, tuple)}
    levels = _levels(graph, order, members)
    _sink(order, readers, levels, members, asked)
    found = []
    for names in _connected(graph, order, levels, members):
        if not pieces.isdisjoint(names):
            read = set(keys).union(*(culled.reads[n] for n in graph.layers if n not in names))
            found.append(_region(names, graph, arrays, read))
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
    asked: set[str],
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
    group: dict[str, list[str]] = {}
    for name in order:
        if name not in members:
            continue
        group[name] = [name]
        mine = graph.layers[name].annotations or {}
        for other in graph.dependencies[name]:
            alike = (
                other in members
                and levels[other] == levels[name]
                and (graph.layers[other].annotations or {}) == mine
            )
            if alike and group[other] is not group[name]:
                joined = [*group[other], *group[name]]
                group.update(dict.fromkeys(joined, joined))
    places = {name: at for at, name in enumerate(order)}
    unique = {id(names): names for names in group.values()}.values()
    return [sorted(names, key=places.__getitem__) for names in unique]


def _region(names: list[str], graph: HighLevelGraph, arrays: ArrayGraph, read: set[Any]) -> Region:
    """Make the region of some layers, of which others read these keys."""
    members = tuple(_member(name, graph, arrays) for name in names)
    wanted = {}
    for member in members:
        name = member.output.name
        blocks = tuple(index for index in member.computed if (name, *index) in read)
        if blocks:
            wanted[name] = blocks
    return Region(members, tuple(wanted.items()), graph.layers[names[0]].annotations)


def _member(name: str, graph: HighLevelGraph, arrays: ArrayGraph) -> Member:
    layer = graph.layers[name]
    if isinstance(layer, PieceLayer):
        return layer.piece
    output = _node(arrays, name)
    tasks = tasks_of(ArrayGraph(graph.layers, graph.dependencies, frozenset()), name)
    inputs = tuple(_node(arrays, other) for other in sorted(graph.dependencies[name]))
    return Blockwork(output, inputs, {key[1:]: task for key, task in tasks.items()})


def _node(arrays: ArrayGraph, name: str) -> ArrayNode:
    node = arrays.node(name)
    if node is None:
        raise LookupError(f"nothing is known of the array {name}")
    return node
