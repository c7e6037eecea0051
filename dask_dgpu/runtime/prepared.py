"""What one rank does in each step of a program, resolved once from the program and its plans.

A program may run many times, and a step may be a few microseconds of work. So names, places, dtypes
and functions are looked up here, not while it runs. Values have numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from dask_dgpu.operations import OPERATIONS
from dask_dgpu.operations.operation import Operation
from dask_dgpu.operations.value import Node, Shipment
from dask_dgpu.runtime.calls import Bound, Chain, Copied, Function, Ordered, Together
from dask_dgpu.runtime.declared import combined, combines, form_of, parts_of, returns_array
from dask_dgpu.runtime.forms import Fields, Known, Parts
from dask_dgpu.runtime.in_place import InPlace
from dask_dgpu.runtime.placement import Block
from dask_dgpu.runtime.plans import Plans
from dask_dgpu.runtime.program import Call, Program
from dask_dgpu.runtime.ship import Shipping
from dask_dgpu.runtime.steps import Declared, Functions, Making, Operating, Step
from dask_dgpu.runtime.tracks import Place, places_of
from graph_opt.model.layout import CUPY, NUMPY, Index

LEAST_RECORDED = 8
"""Fewer steps are not worth the memory of a recording."""


@dataclass(frozen=True)
class Prepared:
    """The steps of one rank of a program, and its blocks of the results: whether it is NumPy's."""

    program: Program
    steps: tuple[Step, ...]
    results: tuple[tuple[Block, bool], ...]

    @cached_property
    def places(self) -> dict[int, Place]:
        """The tracks of the steps, by their numbers."""
        return places_of(self.steps)

    @cached_property
    def on_cuda(self) -> tuple[Stretch, ...]:
        """The steps in stretches that a GPU may record, and others."""
        return _stretches(self.steps, CUPY)

    @cached_property
    def on_host(self) -> tuple[Stretch, ...]:
        """The same for a host."""
        return _stretches(self.steps, NUMPY)


@dataclass(frozen=True, eq=False)
class Stretch:
    """Consecutive steps, ``recordable`` if they can be one recording of a GPU.

    ``reads`` are the values from before it whose blocks they use, ``makes`` those that it leaves
    for later, and ``ends`` those from before it that end within.
    """

    steps: tuple[Step, ...]
    recordable: bool
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    ends: tuple[int, ...]

    @classmethod
    def of(cls, steps: Sequence[Step], recordable: bool) -> Stretch:
        """Return the stretch of these steps."""
        made: dict[int, None] = {}
        reads: dict[int, None] = {}
        for step in steps:
            reads |= dict.fromkeys(number for number in step.reads if number not in made)
            made[step.number] = None
        ends = [number for step in steps for number in step.ending]
        return cls(
            tuple(steps),
            recordable,
            tuple(reads),
            tuple(number for number in made if number not in {*ends}),
            tuple(number for number in ends if number not in made),
        )


def _stretches(steps: Sequence[Step], container: str) -> tuple[Stretch, ...]:
    """Return steps in stretches; a recording has at least :data:`LEAST_RECORDED` of them."""
    found: list[tuple[bool, list[Step]]] = []
    for recordable, group in groupby(steps, key=lambda step: step.is_recordable(container)):
        some = list(group)
        recordable = recordable and len(some) >= LEAST_RECORDED
        if found and not (recordable or found[-1][0]):
            found[-1][1].extend(some)
        else:
            found.append((recordable, some))
    return tuple(Stretch.of(some, recordable) for recordable, some in found)


def prepared(program: Program, plans: Plans, rank: int) -> Prepared:
    """Return what a rank does."""
    return _Preparing(program, plans, rank).all()


@dataclass
class _Preparing:
    program: Program
    plans: Plans
    rank: int

    def all(self) -> Prepared:
        program, moves = self.program, dict(self.plans.moves)
        self.values = program.values
        steps = []
        nodes = zip(program.numbered.items(), program.ends, program.spent, strict=True)
        for (number, node), ending, spent in nodes:
            before = [move for each in node.reads for move in moves.pop(each, ())]
            work: Functions | Operating
            if node.operation is None:
                work = self._functions(number, node, spent)
            else:
                work = self._operating(OPERATIONS[node.operation], number, node, spent)
            action = "transfer" if node.operation == "rechunk" else "compute"
            shipping = Shipping.of(before, self.rank)
            steps.append(Step(number, action, shipping, work, tuple(ending)))
        results = (
            ((number, index), self.values[number].container == NUMPY)
            for number, blocks in program.outputs
            for index in blocks
            if self.plans.values[number].layout.owner(index) == self.rank
        )
        return Prepared(program, tuple(steps), tuple(results))

    def _functions(self, number: int, node: Node, spent: Collection[int]) -> Functions:
        making = self.plans.makings[number]
        mine = [index for index, ranks in making.ranks.items() if self.rank in ranks]
        calls = self.program.blockworks.calls(number, mine)
        uses = Counter(key for call in calls.values() for key in call.reads)
        ending = {key for key, count in uses.items() if key[0] in spent and count == 1}
        return Functions(
            len(node.needs),
            Shipping.of(making.shipments, self.rank, self._forms),
            tuple(self._making(index, call, ending) for index, call in calls.items()),
            node.value.container == NUMPY,
            node.once or any(has_copies(call.function) for call in calls.values()),
            together([call.function for call in calls.values()]),
        )

    def _forms(self, shipments: Sequence[Shipment]) -> dict[Block, Known]:
        """Return what shipped blocks are, of those that are known to be as declared."""
        program = self.program
        found: dict[Block, Known] = {}
        for number in {each.value for each in shipments}:
            blocks = [each.index for each in shipments if each.value == number]
            if number < len(program.inputs):
                continue
            if number in self.plans.makings:
                calls = program.blockworks.calls(number, blocks)
                for index in blocks:
                    part = self._part(number, index, calls[index])
                    if part is not None:
                        found[number, index] = part
                blocks = [index for index in blocks if returns_array(calls[index].function)]
            forms = {index: form_of(self.values[number], index) for index in blocks}
            found |= {(number, index): form for index, form in forms.items() if form is not None}
        return found

    def _part(self, number: int, index: Index, call: Call) -> Parts | Fields | None:
        """Return which part of a reduction a call returns, if it is known."""
        function, reads = call
        sources = [self.values[source] for source, _ in reads]
        found = parts_of(self.values[number], index, function, sources)
        first, source = reads[0] if reads else (-1, ())
        if found is not None or first not in self.plans.makings or not combines(function):
            return found
        (below,) = self.program.blockworks.calls(first, [source]).values()
        part = self._part(first, source, below)
        return None if part is None else combined(part, self.values[number], index)

    def _making(self, index: Index, call: Call, ending: Collection[Block]) -> Making:
        spare = overwritten(call.function, len(call.reads)) if ending else ()
        last = tuple(at for at in spare if call.reads[at] in ending)
        return Making(index, call.function, call.reads, last)

    def _operating(
        self, operation: Operation, number: int, node: Node, spent: Collection[int]
    ) -> Operating:
        plan, finds = self.plans.collectives[number], operation.finds_facts
        inputs = (
            Declared.of(self.plans, each, self.values[each], self.rank, each in spent)
            for each in node.reads
        )
        found, repeats = finds is not None and finds(plan), operation.repeats
        return Operating(
            operation.run, plan, tuple(inputs), found, repeats is None or repeats(plan)
        )


def together(calls: Sequence[Function]) -> Together | None:
    """Return what computes blocks by one call of a function that all of these ``calls`` share.

    That is its method ``together``; ``None`` if it has no such.
    """
    functions = [_within(call) for call in calls]
    if len({*map(id, functions)}) != 1:
        return None
    if any(isinstance(call, Bound) and (call.options or call.named) for call in calls):
        return None
    found: Together | None = getattr(functions[0], "together", None)
    return found


def overwritten(call: Function, count: int) -> Collection[int]:
    """Return which of the ``count`` blocks of a call it may be given as spare, by their places.

    Those that the function within the call overwrites, and reads once.
    """
    if not getattr(_within(call), "overwrites", False):
        return ()
    return call.once() if isinstance(call, Ordered | Bound) else range(count)


def has_copies(call: Function) -> bool:
    """Whether a call, or one within it, has its own copies of functions or values."""
    if isinstance(call, Chain):
        return any(has_copies(each) for _, each, _, _ in call.links)
    if isinstance(call, Bound) and any(has_copies(x) for _, x in (*call.values, *call.named)):
        return True
    if isinstance(call, InPlace | Ordered | Bound):
        return has_copies(call.function)
    return isinstance(call, Copied)


def _within(call: Function) -> Function:
    """Return the function that a call calls with its blocks."""
    return call.function if isinstance(call, Ordered | Bound) else call
