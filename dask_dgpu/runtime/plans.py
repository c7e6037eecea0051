"""The plans of a program: fixed once, reused for the same structure, and sent to all ranks.

The optimizer plans a program for evenly dealt blocks, the scheduler for the blocks where they are.
In one process the second is a lookup if the places agree. Ranks get the scheduler's plans.

Each collective fetches what its ranks lack, so a loop would fetch the blocks of a matrix in each
iteration. If it takes less time, inputs that several collectives read first move to ranks in their
order, the places for which the optimizer has planned.
"""

from __future__ import annotations

import pickle
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_dgpu.kernels.device.host import KEPT_BYTES
from dask_dgpu.operations import OPERATIONS, Cost
from dask_dgpu.operations.operation import Node, Placed, Request, Shipment, shipped_to
from dask_dgpu.runtime.placement import MOST_PARTS, Making, Placement
from dask_dgpu.runtime.program import Program
from graph_opt.model.cost import Beside, Machine
from graph_opt.model.layout import Bare, Index, dealt
from graph_opt.model.recipe import Block

Owners = Sequence[Sequence[int]]
"""The ranks of each input's blocks, in row-major order."""

KEPT_PLANS = 32
"""Number of plans that the process of a planner keeps."""

ROOM = 4
"""Moved blocks are in memory twice, so they may take one in so many parts of a rank's room."""


@dataclass(frozen=True)
class Plans(Bare):
    """The plans of a program, the same on every rank; values have numbers.

    ``collectives`` has the plan of each collective, by its result. ``values`` has the places of
    inputs, of inputs and outputs of collectives, and of results. ``makings`` says where local
    steps make their values. The ``moves`` of inputs come before the first step that reads them;
    ``values`` has their places afterwards.
    """

    collectives: Mapping[int, Any]
    values: Mapping[int, Placed]
    makings: Mapping[int, Making]
    moves: Mapping[int, Sequence[Shipment]]

    def blocks(self, number: int) -> Iterable[tuple[Index, Collection[int]]]:
        """Yield the blocks of a value, each with its ranks."""
        if number in self.makings:
            return self.makings[number].kept()
        return ((index, (rank,)) for index, rank in self.values[number].owners())

    def shipments(self, number: int) -> Sequence[Shipment]:
        """Return the whole blocks that ranks receive for a step, or before it."""
        making = self.makings.get(number)
        moves = self.moves.get(number, ())
        return [*moves, *making.shipments] if making else [*moves]

    def results(self, program: Program) -> list[tuple[Block, int]]:
        """Return the blocks of the results, each with its rank."""
        return [
            ((number, index), self.values[number].layout.owner(index))
            for number, blocks in program.outputs
            for index in blocks
        ]

    @cached_property
    def payload(self) -> bytes:
        """The plans as ranks get them, pickled once for all graphs that have them."""
        return pickle.dumps(self)


def plans(program: Program, owners: Owners, size: int) -> Plans:
    """Plan a program for inputs whose blocks have these ranks."""
    return _settled(program.bare, tuple(map(tuple, owners)), size)


@lru_cache(maxsize=KEPT_PLANS)
def _settled(program: Program, held: Owners, size: int) -> Plans:
    """Plan a program whose inputs move first if several collectives read them, and it pays."""
    stay, readers = _staying(program, held, size), _readers(program)
    home = tuple(
        dealt(len(ranks), size) if readers[i] > 1 else ranks for i, ranks in enumerate(held)
    )
    shipments = [
        Shipment(number, index, source, target)
        for number, value in enumerate(program.inputs)
        for index, source, target in zip(value.indices(), held[number], home[number], strict=True)
        if source != target
    ]
    moved = max(shipped_to(shipments, program.values, size))
    if not shipments or (program.room is not None and ROOM * moved > program.room):
        return stay
    moves = defaultdict[int, list[Shipment]](list)
    for shipment in shipments:
        reader = next(n for n, node in program.numbered.items() if shipment.value in node.reads)
        moves[reader].append(shipment)
    move = replace(_staying(program, home, size), moves=dict(moves))
    return min(stay, move, key=lambda each: _seconds(program, each, size))


def _readers(program: Program) -> Counter[int]:
    """Count the collectives that read each input, or what block functions make of it."""
    counted = Counter[int]()
    origins = [{number} for number in range(len(program.inputs))]
    for node in program.nodes:
        read = set[int]().union(*(origins[value] for value in node.reads))
        if node.operation is not None:
            counted.update(read)
            read = set()
        origins.append(read)
    return counted


def _seconds(program: Program, planned: Plans, size: int) -> float:
    """Predict the collectives, and all transfers of whole blocks."""
    received = (shipped_to(planned.shipments(n), program.values, size) for n in program.numbered)
    shipping = sum(shipping_seconds(each, program.machine) for each in received)
    return shipping + sum(cost.seconds for cost in costs_of(program, planned).values())


@lru_cache(maxsize=KEPT_PLANS)
def _staying(program: Program, held: Owners, size: int) -> Plans:
    """Plan a program whose inputs stay where they are."""
    placement = Placement(size, program.parts)
    given = enumerate(zip(program.inputs, held, strict=True))
    values = {number: value.placed(ranks) for number, (value, ranks) in given}
    for number, value in enumerate(program.inputs):
        placement.put(number, value, values[number].layout)
    collectives: dict[int, Any] = {}
    for (number, node), ending in zip(program.numbered.items(), program.ends, strict=True):
        if node.operation is None:
            placement.make(number, node)
            continue
        own = program.made(ending)
        inputs = tuple(replace(placement.placed(read), spent=read in own) for read in node.reads)
        request = Request(inputs, node.value, node.task, size, program.machine, program.room)
        plan = collectives[number] = _planned(node.operation, request)
        values |= zip(node.reads, inputs, strict=True)
        values[number] = Placed(OPERATIONS[node.operation].layout(plan), node.value.dtype)
        placement.put(number, node.value, values[number].layout)
    values |= {number: placement.placed(number) for number, _ in program.outputs}
    local = program.numbered.keys() - collectives.keys()
    return Plans(collectives, values, {n: placement.making(n) for n in sorted(local)}, moves={})


@lru_cache(maxsize=KEPT_PLANS)
def _planned(operation: str, request: Request) -> Any:
    """Return the plan of a collective; the steps of a loop share one."""
    return OPERATIONS[operation].plan(request)


def costs_of(program: Program, planned: Plans) -> dict[int, Cost]:
    """Return the cost of each collective; all iterations of a loop share one plan."""
    known: dict[int, Cost] = {}
    for number, plan in planned.collectives.items():
        if id(plan) not in known:
            operation = OPERATIONS[program.numbered[number].operation or ""]
            known[id(plan)] = operation.cost(plan, program.machine)
    return {number: known[id(plan)] for number, plan in planned.collectives.items()}


def shipping_seconds(received: Collection[int], machine: Machine) -> float:
    """Predict the seconds in which each rank receives so many bytes of whole blocks."""
    most = max(received)
    return machine.latency + most / machine.rank_rate(len(received)) if most else 0.0


def peak(
    program: Program,
    planned: Plans,
    size: int,
    costs: Mapping[int, Cost],
    beside: Mapping[int, Beside] = MappingProxyType({}),
    lasting: Collection[int] = (),
    threads: int = 1,
) -> tuple[int, int, int]:
    """Return the most bytes on a rank, given the costs of collectives, in three parts.

    These are inputs, results of nodes, and workspace. The peaks of collectives include the inputs,
    the output and the workspace. The workspace of other nodes is what their tasks need ``beside``
    their blocks: a rank computes as many at a time as it has ``threads``. Hosts keep small message
    buffers. Others hold ``lasting`` inputs, so these stay to the end.
    """
    nbytes, inputs = _bytes(program, planned, size), len(program.inputs)
    sizes = nbytes.copy()
    for number, each in beside.items():
        sizes[number] = nbytes[number] * max(1.0, each.held)
    held = np.zeros((2, size), np.int64)  # of inputs, and of results
    held[0] = sizes[:inputs].sum(axis=0)
    peaks, buffers = list[tuple[int, int, int]](), 0
    for (number, node), ending in zip(program.numbered.items(), program.ends, strict=True):
        held[1] += sizes[number]
        workspace = buffers
        if node.operation is not None:
            arrays = nbytes[[*{*node.reads, number}]].sum(axis=0).max()
            workspace = max(buffers, costs[number].peak_bytes - int(arrays))
            buffers = max(buffers, workspace if workspace <= KEPT_BYTES else 0)
        elif number in beside:
            at_once = min(threads, planned.makings[number].most_blocks)
            temporary = beside[number].temporary * _largest_block(program, node)
            workspace += int(at_once * temporary)
        if node.operation is None:
            merged = (group[1 : MOST_PARTS + 1] for group in planned.makings[number].groups)
            workspace += max((sum(map(node.value.nbytes, each)) for each in merged), default=0)
        given, made = held[:, held.sum(axis=0).argmax()].tolist()
        peaks.append((given, made, workspace))
        for value in {*ending}.difference(lasting):
            held[int(value >= inputs)] -= sizes[value]
    return max(peaks, key=sum)


def _bytes(program: Program, planned: Plans, size: int) -> NDArray[np.int64]:
    """Return the bytes of each value on each rank."""
    nbytes = [[0] * size for _ in program.values]
    for number, value in enumerate(program.values):
        for index, ranks in planned.blocks(number):
            for rank in ranks:
                nbytes[number][rank] += value.nbytes(index)
    return np.array(nbytes, np.int64)


def _largest_block(program: Program, node: Node) -> int:
    """Return the bytes of the largest block of a node's result or of what it reads."""
    values = [node.value, *(program.values[number] for number in node.reads)]
    return max((value.nbytes(index) for value in values for index in value.indices()), default=0)
