"""A region: members in an order in which one gang can carry them out, as one program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dask.highlevelgraph import Layer
from dask.tokenize import tokenize

from graph_opt.model.layout import Index
from graph_opt.model.node import ArrayNode, label
from graph_opt.pieces.piece import Piece

Block = tuple[str, Index]

MOST_NAMED = 8
"""Collectives that a region is named after; of a long loop the names say nothing."""


@dataclass(frozen=True)
class Blockwork:
    """One of Dask's layers: each block of ``output`` is made by a task from whole blocks.

    Parameters
    ----------
    output : ArrayNode
        The array that is made.
    inputs : tuple of ArrayNode
        The arrays that are read.
    needs : mapping of tuple of int to tuple of (str, tuple of int)
        For each block that is made, in row-major order, those that it is made from: name of
        the array, and place.
    layer : Layer
        Has the task of each block.
    once : bool, optional
        Whether each block must be made once only, for its functions are a user's.
    """

    output: ArrayNode
    inputs: tuple[ArrayNode, ...]
    needs: Mapping[Index, tuple[Block, ...]]
    layer: Layer
    once: bool = False

    @property
    def label(self) -> str:
        """The name that a user is told."""
        return label(self.output.name)

    @cached_property
    def computed(self) -> tuple[Index, ...]:
        """The blocks that are made, in row-major order."""
        return tuple(self.needs)

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

    @property
    def blockworks(self) -> tuple[Blockwork, ...]:
        """The members that are Dask's own layers."""
        return tuple(member for member in self.members if isinstance(member, Blockwork))

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
                    if not isinstance(member, Blockwork):
                        nodes[node.name] = node  # of which it knows more
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
        """The names of its collectives, or of the first of them."""
        names = [piece.label for piece in self.pieces]
        more = len(names) - MOST_NAMED
        return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")

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
        # as text: Dask looks at each place of thousands for longer than it takes to plan them
        return str(tokenize(*self.members, str(self.wanted)))


def _read(member: Member) -> Iterable[tuple[str, Index]]:
    if isinstance(member, Blockwork):
        return (need for needs in member.needs.values() for need in needs)
    pairs = zip(member.inputs, member.staged, strict=True)
    return ((node.name, index) for node, indices in pairs for index in indices)
