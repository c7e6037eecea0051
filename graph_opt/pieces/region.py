"""Regions: ordered members that one gang computes as one program."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dask.highlevelgraph import Layer
from dask.tokenize import tokenize

from graph_opt.model.layout import ArrayNode, Index, label
from graph_opt.pieces.piece import Piece

Block = tuple[str, Index]

MOST_NAMED = 8
"""Most collectives in the name of a region."""


@dataclass(frozen=True)
class Blockwork:
    """One of Dask's layers, whose tasks compute blocks from whole blocks.

    ``needs`` are the input blocks of each computed block, in row-major order: names of arrays,
    and indices. With ``once`` each block is computed only once: its functions are a user's.
    """

    output: ArrayNode
    inputs: tuple[ArrayNode, ...]
    needs: Mapping[Index, tuple[Block, ...]]
    layer: Layer
    once: bool = False

    @property
    def label(self) -> str:
        """Name in messages."""
        return label(self.output.name)

    @cached_property
    def computed(self) -> tuple[Index, ...]:
        """The computed blocks, in row-major order."""
        return tuple(self.needs)

    def __dask_tokenize__(self) -> Any:
        return self.output.name, self.computed


Member = Piece | Blockwork


@dataclass(frozen=True)
class Region:
    """Members, each after those that it reads, and the blocks that others read.

    Parameters
    ----------
    members : tuple of Piece or Blockwork
        The members, in order.
    wanted : tuple of (str, tuple of tuple of int)
        Names of the arrays that others read, and the indices of their blocks.
    annotations : mapping of str to value, optional
        Dask's annotations, the same for all members.
    """

    members: tuple[Member, ...]
    wanted: tuple[tuple[str, tuple[Index, ...]], ...]
    annotations: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, piece: Piece) -> Region:
        """Return the region of one piece; all computed blocks are wanted."""
        return cls((piece,), ((piece.output.name, tuple(piece.computed)),))

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The collectives."""
        return tuple(member for member in self.members if isinstance(member, Piece))

    @property
    def blockworks(self) -> tuple[Blockwork, ...]:
        """Dask's own layers."""
        return tuple(member for member in self.members if isinstance(member, Blockwork))

    @cached_property
    def nodes(self) -> dict[str, ArrayNode]:
        """The results of all members, by name."""
        return {member.output.name: member.output for member in self.members}

    @cached_property
    def inputs(self) -> tuple[tuple[ArrayNode, tuple[Index, ...]], ...]:
        """The input arrays, and the indices of their blocks in row-major order."""
        nodes: dict[str, ArrayNode] = {}
        read: defaultdict[str, set[Index]] = defaultdict(set)
        for member in self.members:
            for node in member.inputs:
                if node.name not in nodes or isinstance(member, Piece):
                    nodes[node.name] = node  # collectives know more of it
            for name, index in _read(member):
                read[name].add(index)
        return tuple(
            (node, tuple(sorted(read[name])))
            for name, node in nodes.items()
            if name not in self.nodes
        )

    @property
    def operands(self) -> frozenset[str]:
        """Names of the inputs of collectives."""
        return frozenset(node.name for piece in self.pieces for node in piece.inputs)

    @property
    def tasks(self) -> int:
        """Number of tasks in the scheduler: one per input block and wanted block, and the gang."""
        return sum(len(blocks) for _, blocks in (*self.inputs, *self.wanted)) + 1

    @property
    def label(self) -> str:
        """The names of its collectives; of many, only the first."""
        names = [piece.label for piece in self.pieces]
        more = len(names) - MOST_NAMED
        return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")

    def split(self) -> tuple[Region, Region]:
        """Return two regions with half of the members each."""
        middle = len(self.members) // 2
        first, second = self.members[:middle], self.members[middle:]
        read = {(name, index) for name, blocks in self.wanted for index in blocks}
        read.update(*map(_read, second))
        passed_on = []
        for member in first:
            name = member.output.name
            blocks = tuple(index for index in member.computed if (name, index) in read)
            if blocks:
                passed_on.append((name, blocks))
        outputs = {member.output.name for member in second}
        wanted = tuple(each for each in self.wanted if each[0] in outputs)
        return (
            Region(first, tuple(passed_on), self.annotations),
            Region(second, wanted, self.annotations),
        )

    @cached_property
    def token(self) -> str:
        """Token of the members, their computed blocks and the wanted blocks."""
        # as text: for thousands of indices tokenize() takes longer than the plan
        return str(tokenize(*self.members, str(self.wanted)))


def _read(member: Member) -> Iterable[tuple[str, Index]]:
    if isinstance(member, Blockwork):
        return (need for needs in member.needs.values() for need in needs)
    pairs = zip(member.inputs, member.staged, strict=True)
    return ((node.name, index) for node, indices in pairs for index in indices)
