"""Pieces, parts of a graph that need a collective, and regions, the work of one gang."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import md5
from itertools import chain
from itertools import product as cartesian
from typing import Any, ClassVar, Self

from graph_opt.model.cost import Machine
from graph_opt.model.layout import ArrayNode, Cuts, Index
from graph_opt.model.names import label, numbered, parted

Block = tuple[str, Index]

OPAQUE = "uint8"
"""Dtype of arrays that Dask does not declare: blocks count as their bytes, and may be anything."""

Wanted = tuple[tuple[str, tuple[Index, ...]], ...]
"""The names of arrays, and the indices of their blocks that others read."""

MOST_NAMED = 8
"""Most arrays in the name of a region."""


def label_of(titles: Sequence[str]) -> str:
    """Return the labels of some layers, of many only the first."""
    more = len(titles) - MOST_NAMED
    return ", ".join(map(label, titles[:MOST_NAMED])) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True)
class Piece(ABC):
    """An array, computed from others by one gang.

    A rule finds a whole piece. :meth:`restrict` returns a piece for some of the blocks, with
    the same arrays and block indices. A rewrite replaces Dask's layers ``inner`` by the piece, by
    default that of the output. A ``forced`` piece runs in a gang even if plain Dask is predicted
    to be quicker.
    """

    output: ArrayNode
    inner: tuple[str, ...] = field(default=(), kw_only=True)
    forced: bool = field(default=False, kw_only=True)

    only_moves: ClassVar[bool] = False
    """Whether the piece transfers blocks and computes nothing."""

    @property
    @abstractmethod
    def operation(self) -> str:
        """The name of the operation, a key of ``dask_dgpu.operations.OPERATIONS``."""

    @property
    @abstractmethod
    def inputs(self) -> tuple[ArrayNode, ...]:
        """The input arrays."""

    @property
    def task(self) -> Any:
        """Parameters of the operation beyond its inputs and its output."""
        return None

    @property
    def layers(self) -> tuple[str, ...]:
        """Dask's layers that a rewrite replaces, including that of the output."""
        return self.inner or (self.output.name,)

    @property
    def title(self) -> str:
        """The layer whose name messages show."""
        return self.output.name

    @property
    def label(self) -> str:
        """Name in messages."""
        return label(self.title)

    @property
    @abstractmethod
    def summary(self) -> str:
        """The computation in a few words."""

    @property
    def facts(self) -> dict[str, Any]:
        """The computation as plain values."""
        node = self.output
        return {"name": node.name, "shape": node.shape, "dtype": node.dtype}

    @cached_property
    def computed(self) -> tuple[Index, ...]:
        """The computed blocks of the output, in row-major order; by default all."""
        return tuple(self.output.indices)

    @cached_property
    def staged(self) -> tuple[tuple[Index, ...], ...]:
        """The blocks of each input that are read, in row-major order; by default all."""
        return tuple(tuple(node.indices) for node in self.inputs)

    @property
    def units(self) -> tuple[Cuts, ...]:
        """The indices at which blocks along each axis can be computed apart, by default all."""
        return tuple(tuple(range(blocks + 1)) for blocks in self.output.grid)

    @property
    def summed(self) -> Cuts:
        """The elements at which a sum may be cut into terms, by default only its ends."""
        return 0, 1

    def term(self, lo: int, hi: int) -> Self:
        """Return the piece for the term between two cuts of the sum, with its own output."""
        return self

    def reads(self) -> Iterator[Block]:
        """Yield the blocks of all inputs that are read: names of arrays, and indices."""
        for node, indices in zip(self.inputs, self.staged, strict=True):
            for index in indices:
                yield node.name, index

    def restrict(self, wanted: frozenset[Index]) -> Self:
        """Return the piece for these blocks and as few others as possible; by default all."""
        return self

    @abstractmethod
    def dask_cost(self, ranks: int, machine: Machine) -> tuple[int, float]:
        """Return tasks and seconds of plain Dask on ``ranks`` workers."""


@dataclass(frozen=True)
class SeparablePiece(Piece):
    """A piece that can compute any of its blocks alone, from blocks of one input by default.

    The ``wanted`` blocks of the output are in row-major order, by default all.
    """

    source: ArrayNode
    wanted: tuple[Index, ...] | None = field(default=None, kw_only=True)

    @property
    def inputs(self) -> tuple[ArrayNode, ...]:
        """The source."""
        return (self.source,)

    @cached_property
    def computed(self) -> tuple[Index, ...]:
        """The wanted blocks."""
        return tuple(self.output.indices) if self.wanted is None else self.wanted

    @property
    @abstractmethod
    def under(self) -> Sequence[Sequence[Collection[int]]]:
        """For each axis of the source, the chunks that each chunk of the output reads."""

    def turned(self, along: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return what belongs to the axes of the output in the order of the source's."""
        return along

    @cached_property
    def staged(self) -> tuple[tuple[Index, ...], ...]:
        """The blocks of the source that computed blocks read, and all of other inputs."""
        under, read = self.under, set[Index]()
        if self.wanted is None:
            read.update(cartesian(*(set(chain.from_iterable(axis)) for axis in under)))
        for index in self.wanted or ():
            lines = zip(under, self.turned(index), strict=True)
            read.update(cartesian(*(axis[at] for axis, at in lines)))
        return tuple(sorted(read)), *(tuple(node.indices) for node in self.inputs[1:])

    def restrict(self, wanted: frozenset[Index]) -> Self:
        """Return the piece for these blocks."""
        return replace(self, wanted=tuple(sorted(wanted)))


@dataclass(frozen=True)
class Blockwork:
    """One of Dask's layers, whose tasks compute blocks from whole blocks.

    ``needs`` are the input blocks of each computed block, in row-major order: names of arrays,
    and indices. With ``once`` each block is computed only once: its functions are a user's.

    If tasks of the layer read other tasks of it, these are steps ``before``, each of tasks that do
    not depend on each other, and a block of such a step takes as long as a copy of ``copied``
    bytes. The ``inputs`` and :meth:`reads` are those of all steps. Dask runs so many ``inner``
    tasks before those of the blocks; they wait for each other ``depth`` times. A gang does small
    ones together. What the ``layer`` is, only its reader knows.

    A layer that ``merges`` adds parts, so a rank may add those that it has before it sends them.
    """

    output: ArrayNode
    inputs: tuple[ArrayNode, ...]
    needs: Mapping[Index, tuple[Block, ...]]
    layer: Any
    once: bool = False
    merges: bool = False
    before: tuple[Blockwork, ...] = ()
    copied: float | None = None
    inner: int = 0
    depth: int = 0

    @cached_property
    def computed(self) -> tuple[Index, ...]:
        """The computed blocks, in row-major order."""
        return tuple(self.needs)

    @property
    def steps(self) -> tuple[Blockwork, ...]:
        """All steps, in order; this is the last."""
        return *self.before, self

    def reads(self) -> Iterator[Block]:
        """Yield the input blocks, some of them several times."""
        own = {step.output.name for step in self.before}
        blocks = chain.from_iterable(step.needs.values() for step in self.steps)
        return (block for block in chain.from_iterable(blocks) if block[0] not in own)


Member = Piece | Blockwork


@dataclass(frozen=True)
class Region:
    """Members, each after those that it reads, and the blocks that others read.

    ``wanted`` are the names of the arrays that others read and the indices of their blocks, and
    ``annotations`` Dask's, the same for all members. A part of a collective runs ``after`` the
    part with this token, when this block of it exists. The blocks of some parts are terms of the
    sums that are the blocks of another array, ``term_of``.
    """

    members: tuple[Member, ...]
    wanted: Wanted
    annotations: Mapping[str, Any] | None = None
    after: tuple[str, Block] | None = None
    term_of: str | None = None

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

    @property
    def works(self) -> tuple[Blockwork, ...]:
        """All steps of Dask's own layers."""
        return tuple(step for work in self.blockworks for step in work.steps)

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
            for name, index in member.reads():
                read[name].add(index)
        return tuple(
            (node, tuple(sorted(read[name])))
            for name, node in nodes.items()
            if name not in self.nodes
        )

    @property
    def forced(self) -> bool:
        """Whether nothing but forced collectives runs."""
        return all(isinstance(member, Piece) and member.forced for member in self.members)

    @cached_property
    def joins(self) -> bool:
        """Whether a block depends on several blocks of an array, as in ``x.sum()``."""
        return any(
            len(work.steps) > 1 or len({name for name, _ in blocks}) < len(blocks)
            for work in self.blockworks
            for blocks in work.needs.values()
        )

    @cached_property
    def in_place(self) -> bool:
        """Whether each block is computed only from blocks with the same index."""
        return not self.pieces and all(
            index == other
            for work in self.works
            for index, blocks in work.needs.items()
            for _, other in blocks
        )

    @property
    def operands(self) -> frozenset[str]:
        """Names of the inputs of collectives."""
        return frozenset(node.name for piece in self.pieces for node in piece.inputs)

    @property
    def tasks(self) -> int:
        """Number of tasks in the scheduler: one per input block and wanted block, and the gang.

        A part that runs after another has one more.
        """
        blocks = sum(len(blocks) for _, blocks in (*self.inputs, *self.wanted))
        return blocks + (1 if self.after is None else 2)

    @property
    def titles(self) -> tuple[str, ...]:
        """The names of its collectives, or else of its results."""
        return tuple(piece.title for piece in self.pieces) or tuple(dict(self.wanted))

    @property
    def label(self) -> str:
        """Name in messages."""
        return label_of(self.titles)

    def split(self) -> tuple[Region, Region]:
        """Return two regions with half of the members each."""
        middle = len(self.members) // 2
        first, second = self.members[:middle], self.members[middle:]
        read = {(name, index) for name, blocks in self.wanted for index in blocks}
        read.update(*(member.reads() for member in second))
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
        """The tokens of the wanted arrays, and a digest of how their wanted blocks are computed.

        The former are tokens of all that the blocks depend on. The latter is the same for all
        graphs of one structure: in the names of members, what they read and compute, tokens are
        numbered.
        """
        members = [
            (member.output.name, member.computed, [node.name for node in member.inputs])
            for member in self.members
        ]
        text, _ = numbered(repr((members, self.wanted, self.after)).encode())
        digest = md5(text, usedforsecurity=False).hexdigest()[:16]
        _, tokens = parted(" ".join(dict(self.wanted)).encode())
        return "-".join([*(token.decode() for token in dict.fromkeys(tokens)), digest])
