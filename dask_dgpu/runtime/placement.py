"""The ranks that compute each block, and the blocks that travel whole.

- A collective determines the ranks of its result.
- A block of one of Dask's block functions is computed on the rank with most of its inputs; the
  rest travels there. Of equals it is the rank of an input at the same place, so ``x + x.T`` lies
  where ``x`` does.
- A block without inputs, or with small ones, has no rank until another block reads it. Then all
  reading ranks compute it: a mask is computed next to the transform that it multiplies, and wave
  numbers are computed everywhere instead of sent.
- So does a block of partial results on several ranks, such as a sum. Each reading rank receives the
  partial results and adds them itself, in the same order. That takes one exchange; a sum that one
  rank computes and sends takes two.
- A block of a user's function is computed on one rank only, because each call may return something
  else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dask_dgpu.operations.operation import Need, Placed, Shipment, Value
from graph_opt.model.layout import Index, Layout, dealt

Block = tuple[int, Index]
"""A block: the number of its value, and its place."""

Needs = Mapping[Index, Sequence[Need]]
Ranks = tuple[int, ...]

LITTLE = 0.5
"""Inputs with less than this fraction of a block's bytes do not bind it to a rank."""

SMALL = 64 << 10
"""Most bytes that each reading rank may receive and compute for a block of partial results."""

PARCEL = 1 << 10
"""Each received block counts as this many bytes at least: a message takes time of its own."""


@dataclass(frozen=True)
class Making:
    """The ranks that compute each block of a value, none for an unused one; transfers before."""

    ranks: Mapping[Index, Ranks]
    shipments: tuple[Shipment, ...]


@dataclass
class _Made:
    """A value: the ranks of each block, none for a free one, and the shipments before its step.

    ``joins`` says whether it has fewer blocks than an input, or only one. Free blocks have
    ``weights``, and some a ``likely`` rank, which has most of what they are computed from.
    """

    value: Value
    ranks: dict[Index, Ranks]
    order: int
    inputs: Sequence[int] = ()
    needs: Needs = field(default_factory=dict)
    once: bool = False
    joins: bool = False
    shipments: dict[Shipment, None] = field(default_factory=dict)  # in their order
    weights: dict[Index, int] = field(default_factory=dict)
    likely: dict[Index, int] = field(default_factory=dict)

    def weight(self, index: Index) -> int:
        """Return the bytes that a reading rank receives for a block, or computes."""
        if self.ranks[index]:
            return max(PARCEL, self.value.nbytes(index))
        return self.weights[index]


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
        sources = [self._made[each] for each in inputs]
        joins = len(needs) <= 1 or any(len(needs) < len(each.ranks) for each in sources)
        ranks: dict[Index, Ranks] = dict.fromkeys(needs, ())
        made = _Made(value, ranks, len(self._made), inputs, needs, once, joins)
        self._made[number] = made
        alike = [at for at, each in enumerate(sources) if each.value.cuts == value.cuts]
        demands: dict[Block, set[int]] = {}
        for index, blocks in needs.items():
            rank = self._choose(made, index, sources, alike)
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
            at = dict(zip(made.ranks, dealt(len(made.ranks), self.size), strict=True)) | made.likely
            self._meet(number, {(number, index): {at[index]} for index in free})
        return made.value.placed([made.ranks[index][0] for index in made.value.indices()])

    def making(self, number: int) -> Making:
        """Return the result for a value of block functions, after all values are added."""
        made = self._made[number]
        return Making(made.ranks, tuple(made.shipments))

    def _choose(
        self, made: _Made, index: Index, sources: Sequence[_Made], alike: Sequence[int]
    ) -> int | None:
        """Return the rank that computes a block, ``None`` if its readers do.

        Sources that are ``alike`` have the blocks of the value.
        """
        needs, nbytes = made.needs[index], made.value.nbytes(index)
        self._settle(made.inputs, sources, needs)
        same = [(at, index) for at in alike]
        held, common = _held(sources, sorted(needs, key=lambda need: need not in same))
        likely = held or _likely(sources, needs)
        best = max(likely, key=likely.__getitem__, default=None)  # the first of equals
        if best is not None and likely[best] < LITTLE * nbytes:
            best = None
        bound = made.once or len(common) == 1 or not (common or made.joins or not held)
        if best is not None and bound:
            return best
        weight = nbytes + sum(sources[at].weight(need) for at, need in needs)
        if best is not None:
            if weight > SMALL:
                return best
            made.likely[index] = best
        made.weights[index] = weight
        return None

    def _settle(
        self, inputs: Sequence[int], sources: Sequence[_Made], needs: Iterable[Need]
    ) -> None:
        """Compute free inputs of a block where most of their own inputs are, if they are large."""
        free = [(at, need) for at, need in needs if not sources[at].ranks[need]]
        if sum(sources[at].weights[need] for at, need in free) <= SMALL:
            return
        for at, need in free:
            made = sources[at]
            if need in made.likely and not made.ranks[need]:  # others may have needed it meanwhile
                self._meet(inputs[at], {(inputs[at], need): {made.likely[need]}})

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


def _held(sources: Sequence[_Made], needs: Iterable[Need]) -> tuple[dict[int, int], set[int]]:
    """Return the bytes of a block's inputs on each rank, and the ranks that have all of them.

    Free inputs do not count.
    """
    held: dict[int, int] = {}
    common: set[int] | None = None
    for at, index in needs:
        made = sources[at]
        ranks = made.ranks[index]
        for rank in ranks:
            held[rank] = held.get(rank, 0) + max(1, made.value.nbytes(index))
        if ranks:
            common = {*ranks} if common is None else common.intersection(ranks)
    return held, common or set()


def _likely(sources: Sequence[_Made], needs: Iterable[Need]) -> dict[int, int]:
    """Return the bytes of a block's inputs, all of them free, on their likely ranks."""
    found: dict[int, int] = {}
    for at, index in needs:
        made = sources[at]
        if index in made.likely:
            rank = made.likely[index]
            found[rank] = found.get(rank, 0) + max(1, made.value.nbytes(index))
    return found
