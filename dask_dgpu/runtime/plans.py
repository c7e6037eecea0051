"""The plans of a program: fixed once, reused for the same structure, and sent to all ranks.

The optimizer plans a program for evenly dealt blocks, the scheduler for the blocks where they are.
In one process the second is a lookup if the places agree. Ranks get the scheduler's plans.

The ranks that compute each block, and the blocks that travel whole:

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

import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, cast

from dask_dgpu.operations import OPERATIONS
from dask_dgpu.operations.operation import Request
from dask_dgpu.operations.value import Need, Placed, Shipment, Value
from dask_dgpu.runtime.homes import Held, Moves, homes, is_worthwhile, moves
from dask_dgpu.runtime.program import Key, Program, Structure
from graph_opt.model.layout import Bare, Index, Layout, dealt

Block = tuple[int, Index]
"""A block: the number of its value, and its place."""

Needs = Mapping[Index, Sequence[Need]]
Ranks = tuple[int, ...]

LITTLE = 0.5
"""Inputs with less than this fraction of a block's bytes do not bind it to a rank."""

Owners = Mapping[str, Sequence[int]]

KEPT_PLANS = 32
"""Number of plans that a process keeps, with whatever ranks derive from them."""


@dataclass(frozen=True)
class Making:
    """The ranks that compute each block of a value, none for an unused one; transfers before."""

    ranks: Mapping[Index, Ranks]
    shipments: tuple[Shipment, ...]


@dataclass(frozen=True)
class Fixed(Bare):
    """The plans of a structure, the same on every rank; values have numbers.

    ``collectives`` has the plan of each collective, by its output. ``values`` has the places of
    inputs, of inputs and outputs of collectives, and of results. ``makings`` says where local
    steps make their values. The ``moves`` of an input come before its first use; ``values`` has
    its places after them.
    """

    collectives: Mapping[int, Any]
    values: Mapping[int, Placed]
    makings: Mapping[int, Making]
    moves: Moves

    @cached_property
    def payload(self) -> bytes:
        """The plans as ranks get them, pickled once."""
        return pickle.dumps(self)


class Plans:
    """The plans of a program, by the names of its values.

    ``prepared`` has for each rank what it has made of them to run the program.
    """

    def __init__(self, program: Program, fixed: Fixed) -> None:
        names = program.names
        self.program = program
        self.fixed = fixed
        self.numbers = {name: number for number, name in enumerate(names)}
        self.collectives = {names[number]: plan for number, plan in fixed.collectives.items()}
        self.values = {names[number]: placed for number, placed in fixed.values.items()}
        self.makings = {names[number]: making for number, making in fixed.makings.items()}
        self.prepared: dict[int, Any] = {}

    def placed(self) -> dict[Key, int]:
        """Return the rank that ends up with each block of the results."""
        return {
            (name, *index): self.values[name].layout.owner(index)
            for name, blocks in self.program.outputs
            for index in blocks
        }


def plans(program: Program, owners: Owners, size: int) -> Plans:
    """Plan a program; ``owners`` are the ranks of each input's blocks, in row-major order."""
    held = tuple(tuple(owners[name]) for name, _ in program.inputs)
    return Plans(program, _fixed(Structure.of(program), held, size))


@lru_cache(maxsize=KEPT_PLANS)
def received(payload: bytes) -> Fixed:
    """Return the plans that the scheduler has sent, and the same object for the same plans."""
    return cast(Fixed, pickle.loads(payload))


@lru_cache(maxsize=KEPT_PLANS)
def _fixed(structure: Structure, held: Held, size: int) -> Fixed:
    stay, even = _staying(structure, held, size), tuple(dealt(len(each), size) for each in held)
    home = held if held == even else homes(structure, held, even)
    if home == held:
        return stay
    move = replace(_staying(structure, home, size), moves=moves(structure, held, home))
    return move if is_worthwhile(structure, stay, move, size) else stay


@lru_cache(maxsize=KEPT_PLANS)
def _staying(structure: Structure, held: Held, size: int) -> Fixed:
    """Plan a program whose inputs stay where they are."""
    placement = Placement(size)
    values: dict[int, Placed] = {}
    for number, (value, ranks) in enumerate(zip(structure.inputs, held, strict=True)):
        values[number] = value.placed(ranks)
        placement.put(number, value, values[number].layout)
    first = len(structure.inputs)
    collectives: dict[int, Any] = {}
    for at, stage in enumerate(structure.stages):
        number, result = first + at, stage.result
        if stage.operation is None:
            needs = dict(zip(result.indices(), stage.needs, strict=True))
            placement.make(number, result, stage.inputs, needs, stage.once)
            continue
        inputs = tuple(
            replace(placement.placed(each), spent=spent)
            for each, spent in zip(stage.inputs, stage.spent, strict=True)
        )
        request = Request(inputs, result, stage.task, size, structure.machine, structure.room)
        plan = _planned(stage.operation, request)
        layout = OPERATIONS[stage.operation].layout(plan)
        collectives[number] = plan
        values.update(zip(stage.inputs, inputs, strict=True))
        values[number] = Placed(layout, result.dtype)
        placement.put(number, result, layout)
    values |= {number: placement.placed(number) for number, _ in structure.outputs}
    local = [first + at for at, stage in enumerate(structure.stages) if stage.operation is None]
    makings = {number: placement.making(number) for number in local}
    return Fixed(collectives, values, makings, moves={})


@lru_cache(maxsize=KEPT_PLANS)
def _planned(operation: str, request: Request) -> Any:
    """Return the plan of a collective; the steps of a loop share one."""
    return OPERATIONS[operation].plan(request)


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
