"""The ranks that compute each block, and the blocks that travel whole.

- A collective determines the ranks of its result.
- A block of one of Dask's block functions is computed on the rank with most of its inputs; the
  rest travels there. Of equals it is the rank of an input at the same place, so ``x + x.T`` lies
  where ``x`` does.
- A block without inputs, or with small ones, is shared: each rank that reads it computes it. So a
  mask is computed next to the transform that it multiplies, and wave numbers are computed
  everywhere instead of sent.
- So is a block of partial results on several ranks, such as a sum. Each reading rank receives the
  partial results and adds them itself, in the same order. That takes one exchange; a sum that one
  rank computes and sends takes two.
- A block of a user's function is computed on one rank only, because each call may return something
  else.
- Parts of sums are merged where they are computed, so each rank sends one for a block of the
  result, to the least loaded rank that has one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from dask_dgpu.operations.operation import Node, Placed, Shipment, Value
from graph_opt.model.layout import Index, Layout, dealt

Ranks = tuple[int, ...]
Groups = tuple[tuple[Index, ...], ...]

LITTLE = 0.5
"""Inputs with less than this fraction of a block's bytes do not bind it to a rank."""

SMALL = 64 << 10
"""Most bytes that each reading rank may receive and compute for a block of partial results."""

MOST_PARTS = 32
"""Most parts of sums that a rank computes before it merges them."""

PARCEL = 1 << 10
"""Each received block counts as this many bytes at least: a message takes time of its own."""


@dataclass(frozen=True)
class Making:
    """The ranks that compute each block of a value, none for an unused one; transfers before.

    Of parts of sums, the rank that computes some ``groups`` of them merges each into its first.
    """

    ranks: Mapping[Index, Ranks]
    shipments: tuple[Shipment, ...]
    groups: Groups = ()

    def kept(self) -> Iterator[tuple[Index, Ranks]]:
        """Yield the blocks that are left after the step, each with its ranks."""
        gone = {other for _, *others in self.groups for other in others}
        return ((index, ranks) for index, ranks in self.ranks.items() if index not in gone)

    @property
    def most_blocks(self) -> int:
        """The number of blocks that the busiest rank computes."""
        return max(Counter(chain.from_iterable(self.ranks.values())).values(), default=0)


@dataclass(slots=True, eq=False)
class _Block:
    """A block of a value, the blocks that it reads, and the ranks that compute it, in their order.

    Each rank that reads a ``shared`` block computes it, from ``weight`` bytes with its own. The
    first rank of another block sends it. The ``home`` of a block is the rank with most of what it
    reads, else the first rank. Parts of a sum are ``merged`` into the first of them.
    """

    value: int
    index: Index
    nbytes: int
    reads: Sequence[_Block] = ()
    home: int | None = None
    shared: bool = False
    weight: int = 0
    ranks: Ranks = ()
    merges: bool = False
    merged: list[Index] = field(default_factory=list)
    is_merged: bool = False

    @property
    def is_bound(self) -> bool:
        """Whether ranks without the block receive it."""
        return bool(self.ranks) and not self.shared

    @property
    def burden(self) -> int:
        """The bytes that a reading rank receives for the block, or computes."""
        return max(PARCEL, self.nbytes) if self.ranks else self.weight


class Placement:
    """The ranks with the blocks of each value, found step by step."""

    def __init__(self, size: int, parts: Collection[int] = ()) -> None:
        self.size = size
        self._parts = parts
        self._blocks: dict[int, dict[Index, _Block]] = {}
        self._values: dict[int, Value] = {}
        self._shipments: dict[int, dict[Shipment, None]] = defaultdict(dict)  # in their order

    def put(self, number: int, value: Value, layout: Layout) -> None:
        """Add a value with known ranks: an input, or the result of a collective."""
        self._values[number] = value
        self._blocks[number] = {
            index: _Block(number, index, value.nbytes(index), home=rank, ranks=(rank,))
            for index, rank in zip(layout.indices(), layout.owners, strict=True)
            if rank >= 0
        }

    def make(self, number: int, node: Node) -> None:
        """Add the value of block functions, and choose the ranks of blocks if inputs bind them."""
        value, needs = node.value, node.blocks()
        sources = [self._blocks[read] for read in node.reads]
        joins = len(needs) <= 1 or any(len(needs) < len(source) for source in sources)
        owners = {
            index: _Block(number, index, value.nbytes(index), [sources[at][n] for at, n in reads])
            for index, reads in needs.items()
        }
        self._values[number], self._blocks[number], blocks = value, owners, owners.values()
        load = Counter[int]() if node.merges else None
        for block in blocks:
            block.merges = node.merges
            if node.merges and number in self._parts:
                block.shared = True  # its readers do without it
                continue
            reads = self._merged(block) if node.merges else block.reads
            self._choose(block, reads, joins=joins, once=node.once, load=load)
        for block in blocks:
            if block.home is not None and not block.shared:
                self._compute(block, block.home)

    def placed(self, number: int) -> Placed:
        """Return the ranks of a value, after distributing blocks without one.

        From now on other ranks receive its blocks, which may be large.
        """
        blocks, value = self._blocks[number], self._values[number]
        for block, rank in zip(blocks.values(), dealt(len(blocks), self.size), strict=True):
            if not block.ranks:
                self._compute(block, rank if block.home is None else block.home)
            block.shared = False
        return value.placed([blocks[index].ranks[0] for index in value.indices()])

    def making(self, number: int) -> Making:
        """Return the result for a value of block functions, after all values are added."""
        ranks = {index: block.ranks for index, block in self._blocks[number].items()}
        groups = (block.merged for block in self._blocks[number].values() if block.merged)
        return Making(ranks, tuple(self._shipments[number]), tuple(map(tuple, groups)))

    def _merged(self, block: _Block) -> list[_Block]:
        """Let each rank merge its parts for a block; return the parts that are left."""
        parts = list(_leaves(block.reads))
        self._settle(parts)
        firsts: dict[tuple[int, int], _Block] = {}
        for part in parts:
            if part.is_bound and part.value in self._parts:
                first = firsts.setdefault((part.value, part.ranks[0]), part)
                if first is not part:
                    part.is_merged = True
                    first.merged = first.merged or [first.index]
                    first.merged.append(part.index)
        return [part for part in parts if not part.is_merged]

    def _choose(
        self,
        block: _Block,
        reads: Sequence[_Block],
        *,
        joins: bool,
        once: bool,
        load: Counter[int] | None = None,
    ) -> None:
        """Find the home of a block, and whether its readers compute it.

        If there is a ``load`` of ranks, it is that with the least of those with most.
        """
        self._settle(reads)
        bound = [read for read in reads if read.is_bound]
        held: dict[int, int] = {}
        for read in sorted(bound or reads, key=lambda read: read.index != block.index):
            if read.home is not None:
                held[read.home] = held.get(read.home, 0) + max(1, read.nbytes)
        most = max(held, key=held.__getitem__, default=None)  # the first of equals
        if most is not None and load is not None:
            most = min(held, key=lambda rank: (load[rank], rank))
            load[most] += block.nbytes * (len(held) - 1) + 1
        is_part = block.value in self._parts
        if most is not None and (is_part or held[most] >= LITTLE * block.nbytes):
            block.home = most
        block.weight = block.nbytes + sum([read.burden for read in reads])
        meets = not bound or (joins and len(held) > 1)
        block.shared = not once and (block.home is None or (meets and block.weight <= SMALL))

    def _settle(self, reads: Sequence[_Block]) -> None:
        """Bind shared inputs of a block to their homes, if they are large together."""
        shared = [read for read in reads if read.shared]
        if sum([read.burden for read in shared]) <= SMALL:
            return
        for read in shared:
            if read.home is not None:
                read.shared = False
                self._compute(read, read.home)

    def _compute(self, block: _Block, rank: int) -> None:
        """Let a rank compute a block, and receive or compute what it reads."""
        missing = [block]
        while missing:
            block = missing.pop()
            if rank in block.ranks:
                continue
            block.ranks += (rank,)
            if block.home is None:
                block.home = rank
            for read in block.reads:
                if not read.is_bound:
                    missing.append(read)
                elif rank not in read.ranks and not read.is_merged:
                    shipment = Shipment(read.value, read.index, read.ranks[0], rank)
                    self._shipments[block.value][shipment] = None


def _leaves(reads: Iterable[_Block]) -> Iterator[_Block]:
    """Yield the parts in a tree of those that merge others."""
    for read in reads:
        if read.merges and read.shared:
            yield from _leaves(read.reads)
        else:
            yield read
