"""Where each block of a program is made, and which blocks travel whole.

A collective says where its result is. What Dask's own block functions make, is made on the
rank that has most of what it is made of; the rest travels there. What is made of nothing, or
of little, has no place until somebody reads it, and is then made where it is read, on
several ranks if several read it: so a mask meets the transform that it is multiplied with
where that is, and a wave number is computed everywhere rather than sent. What a user's
function makes is made on one of these ranks, for it may give something else at each call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dask_dgpu.operations.step import Need
from dask_dgpu.operations.value import Placed, Value
from graph_opt.model.layout import Index, Layout, dealt

Block = tuple[int, Index]
"""A block of a value: the number of the value, and the place of the block in it."""

Ranks = tuple[int, ...]

LITTLE = 0.5
"""What has less than this share of the bytes of a block does not bind it to a rank."""


@dataclass(frozen=True)
class Shipment:
    """A block that one rank sends to another, whole."""

    value: int
    index: Index
    source: int
    target: int


@dataclass(frozen=True)
class Making:
    """A value that is made by block functions, as ranks see it.

    Parameters
    ----------
    ranks : mapping of tuple of int to tuple of int
        The ranks that make each block; none for one that nobody reads.
    shipments : tuple of Shipment
        What travels before.
    """

    ranks: Mapping[Index, Ranks]
    shipments: tuple[Shipment, ...]


@dataclass
class _Made:
    value: Value
    ranks: dict[Index, Ranks]
    inputs: Sequence[int] = ()
    needs: Mapping[Index, Sequence[Need]] = field(default_factory=dict)
    once: bool = False
    shipments: dict[Shipment, None] = field(default_factory=dict)  # in their order


class Placement:
    """The ranks that hold the blocks of each value, found step by step.

    Parameters
    ----------
    size : int
        Number of ranks.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._made: dict[int, _Made] = {}
        self._order: dict[int, int] = {}

    def put(self, number: int, value: Value, layout: Layout) -> None:
        """Note a value that has a place: an input, or the result of a collective."""
        ranks: dict[Index, Ranks] = {
            index: (owner,)
            for index, owner in zip(layout.indices(), layout.owners, strict=True)
            if owner >= 0
        }
        self._made[number] = _Made(value, ranks)
        self._order[number] = len(self._order)

    def make(
        self,
        number: int,
        value: Value,
        inputs: Sequence[int],
        needs: Mapping[Index, Sequence[Need]],
        once: bool = False,
    ) -> None:
        """Note a value whose blocks are each made of whole blocks, and place what can be.

        ``needs`` says for each block, in row-major order, of which blocks of ``inputs``;
        ``once``, that no two ranks may make the same.
        """
        made = self._made[number] = _Made(value, dict.fromkeys(needs, ()), inputs, needs, once)
        self._order[number] = len(self._order)
        sources = [self._made[each] for each in inputs]
        demands: dict[Block, set[int]] = {}
        for index, blocks in needs.items():
            rank = _best(value.nbytes(index), sources, blocks)
            if rank is None:
                continue
            made.ranks[index] = (rank,)
            for at, need in blocks:
                if rank not in sources[at].ranks[need]:
                    demands.setdefault((inputs[at], need), set()).add(rank)
        self._meet(number, demands)

    def placed(self, number: int) -> Placed:
        """Return the place of a value; blocks without one are dealt out first."""
        made = self._made[number]
        free = [index for index, ranks in made.ranks.items() if not ranks]
        if free:
            at = dict(zip(made.ranks, dealt(len(made.ranks), self.size), strict=True))
            self._meet(number, {(number, index): {at[index]} for index in free})
        return made.value.placed([made.ranks[index][0] for index in made.value.indices()])

    def making(self, number: int) -> Making:
        """Return what was found for a value made by block functions, once all is."""
        made = self._made[number]
        return Making(made.ranks, tuple(made.shipments))

    def holders(self, number: int) -> Mapping[Index, Ranks]:
        """Return the ranks that hold each block of a value."""
        return self._made[number].ranks

    def _meet(self, number: int, demands: Mapping[Block, set[int]]) -> None:
        """Have the blocks that a value is made of where they are needed.

        What has no place is made there, on all ranks that want it, and so on with what it is
        made of: values are visited from the last to the first, so that all who want a block
        are known when its turn comes.
        """
        wanted: dict[int, dict[Index, list[tuple[int, set[int]]]]] = {}

        def ask(reader: int, blocks: Mapping[Block, set[int]]) -> None:
            for (needed, index), ranks in blocks.items():
                wanted.setdefault(needed, {}).setdefault(index, []).append((reader, ranks))

        ask(number, demands)
        while wanted:
            needed = max(wanted, key=self._order.__getitem__)
            made = self._made[needed]
            for index, readers in wanted.pop(needed).items():
                if made.ranks[index]:
                    self._send(needed, index, readers)
                    continue
                ranks = sorted(set().union(*(ranks for _, ranks in readers)))
                if made.once:
                    ranks = [ranks[sum(index) % len(ranks)]]  # they share the work
                made.ranks[index] = tuple(ranks)
                self._send(needed, index, readers)
                makers = set(ranks)
                ask(needed, {(made.inputs[at], need): makers for at, need in made.needs[index]})

    def _send(self, number: int, index: Index, readers: Iterable[tuple[int, set[int]]]) -> None:
        """Have a block travel to the ranks where it is read and not held."""
        have = self._made[number].ranks[index]
        for reader, ranks in readers:
            for rank in sorted(ranks - set(have)):
                shipment = Shipment(number, index, have[0], rank)
                self._made[reader].shipments[shipment] = None


def _best(nbytes: int, sources: Sequence[_Made], needs: Iterable[Need]) -> int | None:
    """Return the rank that has most of what a block is made of, if it is not little."""
    held: dict[int, int] = {}
    for at, index in needs:
        made = sources[at]
        for rank in made.ranks[index]:
            held[rank] = held.get(rank, 0) + max(1, made.value.nbytes(index))
    best = max(held, key=held.__getitem__, default=None)  # of equals the first one needed
    return best if best is not None and held[best] >= LITTLE * nbytes else None
