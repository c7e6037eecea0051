"""The plans of a program: fixed once, reused for the same structure, and sent to all ranks.

The optimizer plans a program for evenly dealt blocks, the scheduler for the blocks where they are.
In one process the second is a lookup if the places agree. Ranks get the scheduler's plans.

A program that ran out of memory is planned again, ``tight``: collectives have narrower panels, or
more rounds, and no inputs move ahead.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, cast

from dask_dgpu.operations import OPERATIONS
from dask_dgpu.operations.operation import Request
from dask_dgpu.operations.value import Placed
from dask_dgpu.runtime.homes import Held, Moves, homes, is_worthwhile, moves
from dask_dgpu.runtime.placement import Making, Placement
from dask_dgpu.runtime.program import Key, Program, Structure
from graph_opt.model.layout import Bare, dealt

Owners = Mapping[str, Sequence[int]]

KEPT_PLANS = 32
"""Number of plans that a process keeps, with whatever ranks derive from them."""

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
