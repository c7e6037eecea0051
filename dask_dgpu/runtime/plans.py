"""The plans of a program: fixed once, reused for the same structure, and sent to all ranks.

The optimizer plans a program for evenly dealt blocks, the scheduler for the blocks where they are.
In one process the second is a lookup if the places agree. Ranks get the scheduler's plans.

Each collective fetches what its ranks lack, so a loop would fetch the blocks of a matrix in each
iteration. If it takes less time, inputs that several collectives read first move to ranks in their
order, the places for which the optimizer has planned.

A program that ran out of memory is planned again, ``tight``: collectives have narrower panels, or
more rounds, and no inputs move ahead.
"""

from __future__ import annotations

import pickle
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_dgpu.kernels.device.host import KEPT_BYTES
from dask_dgpu.operations import OPERATIONS, Cost
from dask_dgpu.operations.operation import Node, Placed, Request, Shipment, shipped_to
from dask_dgpu.runtime.placement import Block, Making, Placement
from dask_dgpu.runtime.program import Program
from graph_opt.model.cost import Beside, Machine
from graph_opt.model.layout import Bare, dealt

Owners = Sequence[Sequence[int]]
"""The ranks of each input's blocks, in row-major order."""

Held = tuple[tuple[int, ...], ...]
"""The same, as a key."""

NOTHING_BESIDE: Mapping[int, Beside] = MappingProxyType({})
Bytes = NDArray[np.int64]
"""A number for each rank."""

KEPT_PLANS = 32
"""Number of plans that the process of a planner keeps."""

ROOM = 4
"""Moved blocks are in memory twice, so they may take one in so many parts of a rank's room."""

SHARE = 0.5
"""Fraction of its planned bytes that a collective may use in a tight plan, if it can."""


@dataclass(frozen=True)
class Plans(Bare):
    """The plans of a program, the same on every rank; values have numbers.

    ``collectives`` has the plan of each collective, by its result. ``values`` has the places of
    inputs, of inputs and outputs of collectives, and of results. ``makings`` says where local
    steps make their values. The ``moves`` of an input come before its first use; ``values`` has
    its places after them.
    """

    collectives: Mapping[int, Any]
    values: Mapping[int, Placed]
    makings: Mapping[int, Making]
    moves: Mapping[int, tuple[Shipment, ...]]

    def results(self, program: Program) -> list[tuple[Block, int]]:
        """Return the blocks of the results, each with its rank."""
        return [
            ((number, index), self.values[number].layout.owner(index))
            for number, blocks in program.outputs
            for index in blocks
        ]

    @cached_property
    def payload(self) -> bytes:
        """The plans as ranks get them, pickled once."""
        return pickle.dumps(self)


def plans(program: Program, owners: Owners, size: int, *, tight: bool = False) -> Plans:
    """Plan a program for inputs whose blocks have these ranks."""
    held, bare = tuple(map(tuple, owners)), program.bare
    return _staying(bare, held, size, tight=True) if tight else _settled(bare, held, size)


@lru_cache(maxsize=KEPT_PLANS)
def _settled(program: Program, held: Held, size: int) -> Plans:
    """Plan a program whose inputs move first if several collectives read them, and it pays."""
    stay, readers = _staying(program, held, size), _readers(program)
    even = (dealt(len(ranks), size) if readers[at] > 1 else ranks for at, ranks in enumerate(held))
    home = tuple(even)
    moves = {
        number: tuple(
            Shipment(number, index, source, target)
            for index, source, target in zip(value.indices(), held[number], ranks, strict=True)
            if source != target
        )
        for number, (value, ranks) in enumerate(zip(program.inputs, home, strict=True))
        if ranks != held[number]
    }
    moved = max(shipped_to(chain.from_iterable(moves.values()), program.values, size))
    if not moves or (program.room is not None and ROOM * moved > program.room):
        return stay
    move = replace(_staying(program, home, size), moves=moves)
    return min(stay, move, key=lambda each: _seconds(program, each, size))


def _readers(program: Program) -> Counter[int]:
    """Count the collectives that read each input, or what block functions make of it."""
    counted: Counter[int] = Counter()
    origins = [{number} for number in range(len(program.inputs))]
    for node in program.nodes:
        read = set().union(*(origins[each] for each in node.reads))
        if node.operation is not None:
            counted.update(read)
            read = set()
        origins.append(read)
    return counted


def _seconds(program: Program, planned: Plans, size: int) -> float:
    """Predict the collectives, and all transfers of whole blocks."""
    shares, machine = Shares(program, planned, size), program.machine
    shipping = sum(shares.shipping(shares.shipped(each), machine) for each in program.numbered)
    return shipping + sum(cost.seconds for cost in costs_of(program, planned).values())


@lru_cache(maxsize=KEPT_PLANS)
def _staying(program: Program, held: Held, size: int, *, tight: bool = False) -> Plans:
    """Plan a program whose inputs stay where they are."""
    placement = Placement(size)
    values: dict[int, Placed] = {}
    for number, (value, ranks) in enumerate(zip(program.inputs, held, strict=True)):
        values[number] = value.placed(ranks)
        placement.put(number, value, values[number].layout)
    collectives: dict[int, Any] = {}
    for (number, node), spent in zip(program.numbered.items(), program.spent, strict=True):
        if node.operation is None:
            placement.make(number, node.value, node.reads, node.blocks(), node.once)
            continue
        inputs = tuple(replace(placement.placed(each), spent=each in spent) for each in node.reads)
        request = Request(inputs, node.value, node.task, size, program.machine, program.room)
        plan = (_tight if tight else _planned)(node.operation, request)
        layout = OPERATIONS[node.operation].layout(plan)
        collectives[number] = plan
        values.update(zip(node.reads, inputs, strict=True))
        values[number] = Placed(layout, node.value.dtype)
        placement.put(number, node.value, layout)
    values |= {number: placement.placed(number) for number, _ in program.outputs}
    local = [number for number, node in program.numbered.items() if node.operation is None]
    return Plans(collectives, values, {each: placement.making(each) for each in local}, moves={})


@lru_cache(maxsize=KEPT_PLANS)
def _planned(operation: str, request: Request) -> Any:
    """Return the plan of a collective; the steps of a loop share one."""
    return OPERATIONS[operation].plan(request)


def _tight(operation: str, request: Request) -> Any:
    """Return the plan of a collective for a fraction of the bytes that it is planned to need.

    If none needs as little, it is the plan that needs least.
    """
    plan = _planned(operation, request)
    needed = OPERATIONS[operation].cost(plan, request.machine).peak_bytes
    room = SHARE * needed if request.room is None else min(request.room, SHARE * needed)
    return _planned(operation, replace(request, room=room))


def costs_of(program: Program, planned: Plans) -> dict[int, Cost]:
    """Return the cost of each collective; all iterations of a loop share one plan."""
    known: dict[int, Cost] = {}
    found: dict[int, Cost] = {}
    for number, node in program.numbered.items():
        if node.operation is not None:
            plan = planned.collectives[number]
            if id(plan) not in known:
                known[id(plan)] = OPERATIONS[node.operation].cost(plan, program.machine)
            found[number] = known[id(plan)]
    return found


def peak_bytes(program: Program, planned: Plans, size: int) -> int:
    """Return the most bytes that a program is planned to take on one of ``size`` ranks."""
    costs = costs_of(program, planned)
    peaks = {number: cost.peak_bytes for number, cost in costs.items()}
    return sum(Shares(program, planned, size).peak(peaks))


class Shares:
    """The bytes of each value of a planned program on each of ``size`` ranks."""

    def __init__(self, program: Program, planned: Plans, size: int) -> None:
        self.program, self.planned, self.size = program, planned, size
        self.values = program.values

    @cached_property
    def _shares(self) -> Mapping[int, Bytes]:
        return {number: self._share(number) for number in range(len(self.values))}

    def peak(
        self,
        collectives: Mapping[int, int],
        beside: Mapping[int, Beside] = NOTHING_BESIDE,
        lasting: Collection[int] = (),
        threads: int = 1,
    ) -> tuple[int, int, int]:
        """Return the most bytes on a rank, given the peak of each collective, in three parts.

        These are inputs, results of nodes, and workspace. The peaks of collectives include the
        inputs, the output and the workspace. The workspace of other nodes is what their tasks need
        ``beside`` their blocks: a rank computes as many at a time as it has ``threads``. Hosts keep
        small message buffers. Others hold ``lasting`` inputs, so these stay to the end.
        """
        given = set(range(len(self.program.inputs)))
        sizes = dict(self._shares)
        for number, each in beside.items():
            if each.held > 1:
                sizes[number] = (sizes[number] * each.held).astype(np.int64)
        stay = held = self._sum(given, sizes)
        peaks, buffers = [(int(held.max()), 0, 0)], 0
        nodes = self.program.numbered.items()
        for (number, node), ending in zip(nodes, self.program.ends, strict=True):
            held = held + sizes[number]
            workspace = buffers
            if node.operation is not None:
                arrays = self._sum({*node.reads, number}, self._shares).max()
                workspace = int(max(buffers, collectives[number] - arrays))
                buffers = max(buffers, self._kept(node.operation, number))
            elif number in beside and beside[number].temporary:
                at_once = min(threads, self.most_blocks(number))
                temporary = beside[number].temporary * self._largest_block(node)
                workspace += int(at_once * temporary)
            rank = held.argmax()
            peaks.append((int(stay[rank]), int(held[rank] - stay[rank]), workspace))
            freed = {*ending} - {*lasting}
            held = held - self._sum(freed, sizes)
            stay = stay - self._sum(given & freed, sizes)
        return max(peaks, key=sum)

    def _kept(self, operation: str, number: int) -> int:
        """Return the bytes of message buffers that a host keeps after a collective."""
        kept = OPERATIONS[operation].buffers
        found = 0 if kept is None else kept(self.planned.collectives[number])
        return found if found <= KEPT_BYTES else 0

    def _largest_block(self, node: Node) -> int:
        """Return the bytes of the largest block that a node reads or makes."""
        made = max(map(node.value.nbytes, node.value.indices()), default=0)
        values = [self.values[number] for number in node.reads]
        needs = {need for each in node.needs for need in each}
        return max([made, *(values[at].nbytes(index) for at, index in needs)])

    def most_blocks(self, number: int) -> int:
        """Return the number of blocks that the busiest rank computes of a value."""
        making, node = self.planned.makings[number], self.program.numbered[number]
        counted = Counter(rank for index in node.blocks() for rank in making.ranks[index])
        return max(counted.values(), default=0)

    def shipped(self, number: int) -> tuple[int, ...]:
        """Return the bytes of whole blocks that each rank receives for a node, or before it."""
        shipments: list[Shipment] = list(self._first.get(number, ()))
        if number in self.planned.makings:
            shipments += self.planned.makings[number].shipments
        return shipped_to(shipments, self.values, self.size)

    def shipping(self, shipped: Collection[int], machine: Machine) -> float:
        """Predict the seconds in which each rank receives so many bytes of whole blocks."""
        most = max(shipped)
        return machine.latency + most / machine.rank_rate(self.size) if most else 0.0

    @cached_property
    def _first(self) -> Mapping[int, Sequence[Shipment]]:
        """The moves of inputs, by the first node that reads them."""
        left, found = dict(self.planned.moves), defaultdict[int, list[Shipment]](list)
        for number, node in self.program.numbered.items() if left else ():
            for each in node.reads:
                found[number] += left.pop(each, ())
        return found

    def _share(self, number: int) -> Bytes:
        total = [0] * self.size
        making, value = self.planned.makings.get(number), self.values[number]
        if making is None:
            for index, rank in self.planned.values[number].owners():
                total[rank] += value.nbytes(index)
        else:
            for index, ranks in making.ranks.items():
                for rank in ranks:
                    total[rank] += value.nbytes(index)
        return np.array(total, np.int64)

    def _sum(self, numbers: Iterable[int], sizes: Mapping[int, Bytes]) -> Bytes:
        return sum((sizes[number] for number in numbers), np.zeros(self.size, np.int64))
