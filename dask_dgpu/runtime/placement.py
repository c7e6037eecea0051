"""The ranks that compute each block, and the blocks that travel whole.

- A collective determines the ranks of its result.
- A block of one of Dask's block functions is computed on the rank with most of its inputs; the
  rest travels there.
- A block without inputs, or with small ones, has no rank until another block reads it. Then all
  reading ranks compute it: a mask is computed next to the transform that it multiplies, and wave
  numbers are computed everywhere instead of sent.
- A block of a user's function is computed on one of the reading ranks only, because each call may
  return something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dask_dgpu.operations.value import Need, Placed, Shipment, Value
from graph_opt.model.layout import Index, Layout, dealt

Block = tuple[int, Index]
"""A block: the number of its value, and its place."""

Needs = Mapping[Index, Sequence[Need]]
Ranks = tuple[int, ...]

LITTLE = 0.5
"""Inputs with less than this fraction of a block's bytes do not bind it to a rank."""


@dataclass(frozen=True)
class Making:
    """The ranks that compute each block of a value, none for an unused one; transfers before."""

    ranks: Mapping[Index, Ranks]
    shipments: tuple[Shipment, ...]


@dataclass
class _Made:
    value: Value
    ranks: dict[Index, Ranks]
    order: int
    inputs: Sequence[int] = ()
    needs: Needs = field(default_factory=dict)
    once: bool = False
    shipments: dict[Shipment, None] = field(default_factory=dict)  # in their order


class Placement:
    """The ranks with the blocks of each value, found step by step."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._made: dict[int, _Made] = {}

    def put(self, number: int, value: Value, layout: Layout) -> None:
        """Add a value with known ranks: an input, or the result of a collective."""
        ranks: dict[Index, Ranks] = {
            index: (owner,)
            for index, owner in zip(layout.indices(), layout.owners, strict=True)
            if owner >= 0
        }
        self._made[number] = _Made(value, ranks, len(self._made))

    def make(
        self, number: int, value: Value, inputs: Sequence[int], needs: Needs, once: bool = False
    ) -> None:
        """Add a value of block functions, and choose the ranks of its blocks if inputs bind them.

        ``needs`` has for each block, in row-major order, its blocks of ``inputs``. With ``once``,
        only one rank may compute a block.
        """
        made = _Made(value, dict.fromkeys(needs, ()), len(self._made), inputs, needs, once)
        self._made[number] = made
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
        """Return the ranks of a value, after distributing blocks without one."""
        made = self._made[number]
        free = [index for index, ranks in made.ranks.items() if not ranks]
        if free:
            at = dict(zip(made.ranks, dealt(len(made.ranks), self.size), strict=True))
            self._meet(number, {(number, index): {at[index]} for index in free})
        return made.value.placed([made.ranks[index][0] for index in made.value.indices()])

    def making(self, number: int) -> Making:
        """Return the result for a value of block functions, after all values are added."""
        made = self._made[number]
        return Making(made.ranks, tuple(made.shipments))

    def _meet(self, number: int, demands: Mapping[Block, set[int]]) -> None:
        """Provide the needed blocks on their reading ranks.

        Blocks without a rank are computed on all reading ranks; then their inputs are needed
        there. Values are visited from the last to the first, so that all readers of a block are
        known when it is visited.
        """
        wanted: dict[int, dict[Index, list[tuple[int, set[int]]]]] = {}

        def ask(reader: int, blocks: Mapping[Block, set[int]]) -> None:
            for (needed, index), ranks in blocks.items():
                wanted.setdefault(needed, {}).setdefault(index, []).append((reader, ranks))

        ask(number, demands)
        while wanted:
            needed = max(wanted, key=lambda each: self._made[each].order)
            made = self._made[needed]
            for index, readers in wanted.pop(needed).items():
                if not made.ranks[index]:
                    ranks = sorted(set().union(*(ranks for _, ranks in readers)))
                    if made.once:
                        ranks = [ranks[sum(index) % len(ranks)]]  # spread the work
                    made.ranks[index], makers = tuple(ranks), set(ranks)
                    ask(needed, {(made.inputs[at], need): makers for at, need in made.needs[index]})
                self._send(needed, index, readers)

    def _send(self, number: int, index: Index, readers: Iterable[tuple[int, set[int]]]) -> None:
        """Send a block to the reading ranks without it."""
        have = self._made[number].ranks[index]
        for reader, ranks in readers:
            for rank in sorted(ranks - set(have)):
                shipment = Shipment(number, index, have[0], rank)
                self._made[reader].shipments[shipment] = None


def _best(nbytes: int, sources: Sequence[_Made], needs: Iterable[Need]) -> int | None:
    """Return the rank with most of a block's inputs, if these are large enough to bind it."""
    held: dict[int, int] = {}
    for at, index in needs:
        made = sources[at]
        for rank in made.ranks[index]:
            held[rank] = held.get(rank, 0) + max(1, made.value.nbytes(index))
    best = max(held, key=held.__getitem__, default=None)  # the first of equals
    return best if best is not None and held[best] >= LITTLE * nbytes else None
