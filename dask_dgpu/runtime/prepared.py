"""What one rank does in each step of a program, resolved once from the program and its plans.

A program may run many times, and a step may be a few microseconds of work. So names, places, dtypes
and functions are looked up here, not while it runs. Values have numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dask_dgpu.operations import OPERATIONS
from dask_dgpu.operations.value import Blocks, Collective, Local, Shipment, Value
from dask_dgpu.runtime.blockworks import Call, Key
from dask_dgpu.runtime.calls import Together, overwritten, together
from dask_dgpu.runtime.declared import Form, form_of, returns_array
from dask_dgpu.runtime.plans import Block, Plans
from dask_dgpu.runtime.ship import Shipping
from graph_opt.model.layout import NUMPY, Index, dtype_named, label

Array = Any


class Making(NamedTuple):
    """A block that a rank computes: the function, and the blocks that it is called with.

    ``last`` are the numbers of those that nothing reads afterwards, if the function may overwrite
    blocks.
    """

    place: Index
    function: Callable[..., Array]
    reads: tuple[Block, ...]
    last: tuple[int, ...] = ()


@dataclass(frozen=True)
class Functions:
    """Calls of block functions, after the transfers of what they read.

    ``needs`` is the number of blocks of all ranks, and ``on_host`` whether functions expect blocks
    of NumPy. ``together`` computes many blocks at once.
    """

    needs: int
    shipping: Shipping | None
    makings: tuple[Making, ...]
    on_host: bool
    together: Together | None = None

    def batches(self, most: int) -> list[tuple[Making, ...]]:
        """Return the blocks in batches that are computed at once, of up to ``most`` blocks."""
        most = 1 if self.together is None else most
        return [self.makings[at : at + most] for at in range(0, len(self.makings), most)]


class Declared(NamedTuple):
    """An input of a collective: its number, and its blocks as the graph declares them.

    ``owned`` are this rank's: a block that several ranks have computed belongs to the first of
    them. ``spent`` blocks are the operation's own.
    """

    number: int
    name: str
    value: Value
    dtype: np.dtype[Any]
    shapes: Mapping[Index, tuple[int, ...]]
    owned: tuple[Index, ...]
    spent: bool

    @classmethod
    def of(cls, plans: Plans, name: str, value: Value, rank: int, spent: bool) -> Declared:
        """Return an input, by its name."""
        placed = plans.values[name].layout
        shapes = {index: value.block_shape(index) for index in value.indices()}
        owned, dtype = placed.owned(rank), dtype_named(value.dtype)
        return cls(plans.numbers[name], name, value, dtype, shapes, owned, spent)


@dataclass(frozen=True)
class Operating:
    """A collective: ``run`` it by its plan on these inputs; it may keep facts about blocks."""

    run: Callable[..., Blocks | tuple[Blocks, Any]]
    plan: Any
    inputs: tuple[Declared, ...]
    finds_facts: bool


class Step(NamedTuple):
    """A step of one rank: its output, what is moved before it, and the values that end with it.

    ``action`` is that of its span, ``number`` that of its output.
    """

    output: str
    action: str
    number: int
    moves: Shipping | None
    work: Functions | Operating
    ending: tuple[int, ...]


@dataclass(frozen=True)
class Prepared:
    """The steps of one rank, and its blocks of the results: name, block, whether it is NumPy's."""

    steps: tuple[Step, ...]
    results: tuple[tuple[str, Block, bool], ...]


def prepared(plans: Plans, rank: int) -> Prepared:
    """Return what a rank does; it is kept with the plans."""
    if rank not in plans.prepared:
        plans.prepared[rank] = _Preparing(plans, rank).all()
    found: Prepared = plans.prepared[rank]
    return found


@dataclass
class _Preparing:
    plans: Plans
    rank: int

    def all(self) -> Prepared:
        program, numbers = self.plans.program, self.plans.numbers
        self.values = dict(program.inputs) | {step.output: step.result for step in program.steps}
        self.moves = dict(self.plans.fixed.moves)
        steps = []
        for step, ending, spent in zip(program.steps, program.ends, program.spent, strict=True):
            moves = [m for name in step.inputs for m in self.moves.pop(numbers[name], ())]
            work: Functions | Operating
            action = "compute"
            if isinstance(step, Local):
                work = self._functions(step, spent)
            else:
                work = self._operating(step, spent)
                action = "transfer" if step.operation == "rechunk" else action
            steps.append(
                Step(
                    step.output,
                    action,
                    numbers[step.output],
                    Shipping.of(moves, self.rank),
                    work,
                    tuple(numbers[name] for name in ending),
                )
            )
        results = (
            (key[0], (numbers[key[0]], key[1:]), self.values[key[0]].container == NUMPY)
            for key, rank in self.plans.placed().items()
            if rank == self.rank
        )
        return Prepared(tuple(steps), tuple(results))

    def _functions(self, step: Local, spent: Collection[str]) -> Functions:
        plans, making = self.plans, self.plans.makings[step.output]
        mine = [index for index, ranks in making.ranks.items() if self.rank in ranks]
        calls = plans.program.blockworks.calls(step.output, mine)
        uses = Counter(key for call in calls.values() for key in call.reads)
        ending = {key for key, count in uses.items() if key[0] in spent and count == 1}
        return Functions(
            len(step.needs),
            Shipping.of(making.shipments, self.rank, self._forms),
            tuple(self._making(index, call, ending) for index, call in calls.items()),
            step.result.container == NUMPY,
            together([call.function for call in calls.values()]),
        )

    def _forms(self, shipments: Sequence[Shipment]) -> dict[Block, Form]:
        """Return what shipped blocks are, of those that are known to be as declared."""
        program = self.plans.program
        found: dict[Block, Form] = {}
        for number in {each.value for each in shipments}:
            name = program.names[number]
            blocks = [each.index for each in shipments if each.value == number]
            if name in program.given:
                continue
            if name in self.plans.makings:
                calls = program.blockworks.calls(name, blocks)
                blocks = [index for index in blocks if returns_array(calls[index].function)]
            forms = {index: form_of(label(name), self.values[name], index) for index in blocks}
            found |= {(number, index): form for index, form in forms.items() if form is not None}
        return found

    def _making(self, index: Index, call: Call, ending: Collection[Key]) -> Making:
        reads = tuple((self.plans.numbers[key[0]], key[1:]) for key in call.reads)
        spare = overwritten(call.function, len(reads)) if ending else ()
        last = tuple(at for at in spare if call.reads[at] in ending)
        return Making(index, call.function, reads, last)

    def _operating(self, step: Collective, spent: Collection[str]) -> Operating:
        plans, operation = self.plans, OPERATIONS[step.operation]
        plan, finds = plans.collectives[step.output], operation.finds_facts
        inputs = (
            Declared.of(plans, name, self.values[name], self.rank, name in spent)
            for name in step.inputs
        )
        found = finds is not None and finds(plan)
        return Operating(operation.run, plan, tuple(inputs), found)
