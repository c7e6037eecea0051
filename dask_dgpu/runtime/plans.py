"""The plans of a program: fixed once, reused for the same structure, and sent to all ranks.

The optimizer plans a program for evenly dealt blocks, the scheduler for the blocks where they are.
In one process the second is a lookup if the places agree. Ranks get the scheduler's plans.

A program that ran out of memory is planned again, ``tight``: collectives have narrower panels, or
more rounds, and no inputs move ahead.
"""

from __future__ import annotations

import pickle
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dask_dgpu.kernels.device.host import KEPT_BYTES
from dask_dgpu.operations import OPERATIONS, Cost
from dask_dgpu.operations.operation import Request
from dask_dgpu.operations.value import Collective, Local, Placed, Shipment, shipped_to
from dask_dgpu.runtime.homes import Held, Moves, homes, is_worthwhile, moves
from dask_dgpu.runtime.placement import Making, Placement
from dask_dgpu.runtime.program import Key, Program, Structure
from graph_opt.dask_graph.temporaries import Beside
from graph_opt.model.cost import Machine
from graph_opt.model.layout import Bare, dealt

Owners = Mapping[str, Sequence[int]]

NOTHING_BESIDE: Mapping[str, Beside] = MappingProxyType({})
Bytes = NDArray[np.int64]
"""A number for each rank."""

KEPT_PLANS = 32
"""Number of plans that the process of a planner keeps."""

SHARE = 0.5
"""Fraction of its planned bytes that a collective may use in a tight plan, if it can."""


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


def plans(program: Program, owners: Owners, size: int, *, tight: bool = False) -> Plans:
    """Plan a program; ``owners`` are the ranks of each input's blocks, in row-major order."""
    held = tuple(tuple(owners[name]) for name, _ in program.inputs)
    structure = Structure.of(program)
    fixed = _staying(structure, held, size, tight=True) if tight else _fixed(structure, held, size)
    return Plans(program, fixed)


def received(payload: bytes) -> Fixed:
    """Return the plans that the scheduler has sent."""
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
def _staying(structure: Structure, held: Held, size: int, *, tight: bool = False) -> Fixed:
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
        plan = (_tight if tight else _planned)(stage.operation, request)
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


def _tight(operation: str, request: Request) -> Any:
    """Return the plan of a collective for a fraction of the bytes that it is planned to need.

    If none needs as little, it is the plan that needs least.
    """
    plan = _planned(operation, request)
    needed = OPERATIONS[operation].cost(plan, request.machine).peak_bytes
    room = SHARE * needed if request.room is None else min(request.room, SHARE * needed)
    return _planned(operation, replace(request, room=room))


def costs_of(fixed: Plans, machine: Machine) -> dict[str, Cost]:
    """Return the cost of each collective; all iterations of a loop share one plan."""
    known: dict[int, Cost] = {}
    found: dict[str, Cost] = {}
    for step in fixed.program.steps:
        if isinstance(step, Collective):
            plan = fixed.collectives[step.output]
            if id(plan) not in known:
                known[id(plan)] = OPERATIONS[step.operation].cost(plan, machine)
            found[step.output] = known[id(plan)]
    return found


def peak_bytes(fixed: Plans, size: int) -> int:
    """Return the most bytes that a program is planned to take on one of ``size`` ranks."""
    costs = costs_of(fixed, fixed.program.machine)
    peaks = {name: cost.peak_bytes for name, cost in costs.items()}
    return sum(Shares(fixed, size).peak(peaks))


class Shares:
    """The bytes of each value of a planned program on each of ``size`` ranks."""

    def __init__(self, fixed: Plans, size: int) -> None:
        self.program = program = fixed.program
        self.fixed = fixed
        self.size = size
        self.values = dict(program.inputs) | {step.output: step.result for step in program.steps}
        self._numbered = [self.values[name] for name in program.names]
        self._shares = {name: self._share(name) for name in self.values}

    def peak(
        self,
        collectives: Mapping[str, int],
        beside: Mapping[str, Beside] = NOTHING_BESIDE,
        lasting: Collection[str] = (),
        threads: int = 1,
    ) -> tuple[int, int, int]:
        """Return the most bytes on a rank, given the peak of each collective, in three parts.

        These are inputs, results of steps, and workspace. The peaks of collectives include the
        inputs, the output and the workspace. The workspace of other steps is what their tasks need
        ``beside`` their blocks: a rank computes as many at a time as it has ``threads``. Hosts keep
        small message buffers. Others hold ``lasting`` inputs, so these stay to the end.
        """
        given = self.program.given
        sizes = dict(self._shares)
        for name, each in beside.items():
            if each.held > 1:
                sizes[name] = (sizes[name] * each.held).astype(np.int64)
        stay = held = self._sum(given, sizes)
        peaks, buffers = [(int(held.max()), 0, 0)], 0
        for step, ending in zip(self.program.steps, self.program.ends, strict=True):
            held = held + sizes[step.output]
            workspace = buffers
            if isinstance(step, Collective):
                arrays = self._sum({*step.inputs, step.output}, self._shares).max()
                workspace = int(max(buffers, collectives[step.output] - arrays))
                buffers = max(buffers, self._kept(step))
            elif step.output in beside and beside[step.output].temporary:
                at_once = min(threads, self.most_blocks(step))
                temporary = beside[step.output].temporary * self._largest_block(step)
                workspace += int(at_once * temporary)
            rank = held.argmax()
            peaks.append((int(stay[rank]), int(held[rank] - stay[rank]), workspace))
            freed = {*ending} - {*lasting}
            held = held - self._sum(freed, sizes)
            stay = stay - self._sum(given & freed, sizes)
        return max(peaks, key=sum)

    def _kept(self, step: Collective) -> int:
        """Return the bytes of message buffers that a host keeps after a collective."""
        kept = OPERATIONS[step.operation].buffers
        found = 0 if kept is None else kept(self.fixed.collectives[step.output])
        return found if found <= KEPT_BYTES else 0

    def _largest_block(self, step: Local) -> int:
        """Return the bytes of the largest block that a step reads or makes."""
        made = max(map(step.result.nbytes, step.result.indices()), default=0)
        values = [self.values[name] for name in step.inputs]
        needs = {need for each in step.needs for need in each}
        return max([made, *(values[at].nbytes(index) for at, index in needs)])

    def most_blocks(self, step: Local) -> int:
        """Return the number of blocks that the busiest rank computes in a step."""
        ranks = self.fixed.makings[step.output].ranks
        counted = Counter(rank for index in step.blocks() for rank in ranks[index])
        return max(counted.values(), default=0)

    def shipped(self, step: Local | Collective) -> tuple[int, ...]:
        """Return the bytes of whole blocks that each rank receives in a step, or before it."""
        shipments: list[Shipment] = list(self._first.get(step.output, ()))
        if isinstance(step, Local):
            shipments += self.fixed.makings[step.output].shipments
        return shipped_to(shipments, self._numbered, self.size)

    def shipping(self, shipped: Collection[int], machine: Machine) -> float:
        """Predict the seconds in which each rank receives so many bytes of whole blocks."""
        most = max(shipped)
        return machine.latency + most / machine.rank_rate(self.size) if most else 0.0

    @cached_property
    def _first(self) -> Mapping[str, Sequence[Shipment]]:
        """The moves of inputs, by the first step that reads them."""
        moves, found = dict(self.fixed.fixed.moves), defaultdict[str, list[Shipment]](list)
        for step in self.program.steps if moves else ():
            for name in step.inputs:
                found[step.output] += moves.pop(self.fixed.numbers[name], ())
        return found

    def _share(self, name: str) -> Bytes:
        total = [0] * self.size
        making, value = self.fixed.makings.get(name), self.values[name]
        if making is None:
            for index, rank in self.fixed.values[name].owners():
                total[rank] += value.nbytes(index)
        else:
            for index, ranks in making.ranks.items():
                for rank in ranks:
                    total[rank] += value.nbytes(index)
        return np.array(total, np.int64)

    def _sum(self, names: Iterable[str], sizes: Mapping[str, Bytes]) -> Bytes:
        return sum((sizes[name] for name in names), np.zeros(self.size, np.int64))
