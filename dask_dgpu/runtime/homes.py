"""Inputs that move once, because several collectives read them.

Each collective fetches what its ranks lack, so a loop would fetch the blocks of a matrix in each
iteration. If it takes less time, the blocks of such inputs first move to ranks in their order, the
places for which the optimizer has planned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from dask_dgpu.operations import OPERATIONS
from dask_dgpu.operations.value import Shipment, Value, shipped_to
from graph_opt.model.cost import Machine

if TYPE_CHECKING:
    from dask_dgpu.runtime.plans import Plans
    from dask_dgpu.runtime.program import Program

Held = tuple[tuple[int, ...], ...]
"""The ranks of each input's blocks, in row-major order."""

Moves = Mapping[int, tuple[Shipment, ...]]
"""The moves of each input's blocks, by its number."""

ROOM = 4
"""Moved blocks are in memory twice, so they may take one in so many parts of a rank's room."""


def homes(program: Program, held: Held, even: Held) -> Held:
    """Return even shares for inputs that several collectives read, their own places for others."""
    readers = _readers(program)
    places = enumerate(zip(held, even, strict=True))
    return tuple(dealt if readers[number] > 1 else ranks for number, (ranks, dealt) in places)


def moves(program: Program, held: Held, home: Held) -> Moves:
    """Return the moves from the present places to others."""
    found = {}
    for number, (value, before, after) in enumerate(zip(program.inputs, held, home, strict=True)):
        places = zip(value.indices(), before, after, strict=True)
        found[number] = tuple(
            Shipment(number, index, source, target)
            for index, source, target in places
            if source != target
        )
    return {number: shipments for number, shipments in found.items() if shipments}


def is_worthwhile(program: Program, stay: Plans, move: Plans, size: int) -> bool:
    """Whether moving inputs first takes less time, and the moved blocks fit."""
    machine, room = program.machine, program.room
    values = program.values
    most = max(shipped_to(chain.from_iterable(move.moves.values()), values, size))
    if room is not None and ROOM * most > room:
        return False
    moving = len(move.moves) * machine.latency + most / machine.rank_rate(size)
    return moving + _seconds(program, move, size) < _seconds(program, stay, size)


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


def _seconds(program: Program, plans: Plans, size: int) -> float:
    """Predict the collectives, and the transfers of whole blocks between them."""
    machine, values = program.machine, program.values
    known: dict[int, float] = {}  # iterations of a loop share a plan
    seconds = 0.0
    for number, node in program.numbered.items():
        if node.operation is None:
            shipments = plans.makings[number].shipments
            seconds += _shipping(shipments, values, size, machine)
            continue
        plan = plans.collectives[number]
        if id(plan) not in known:
            known[id(plan)] = OPERATIONS[node.operation].cost(plan, machine).seconds
        seconds += known[id(plan)]
    return seconds


def _shipping(
    shipments: Sequence[Shipment], values: Sequence[Value], size: int, machine: Machine
) -> float:
    if not shipments:
        return 0.0
    return machine.latency + max(shipped_to(shipments, values, size)) / machine.rank_rate(size)
