"""What one rank does in each step of a program, resolved once from the program and its plans.

A program may run many times, and a step may be a few microseconds of work. So names, places, dtypes
and functions are looked up here, not while it runs. Values have numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from dask_dgpu.operations import OPERATIONS
from dask_dgpu.operations.operation import Blocks, Shipment, Value
from dask_dgpu.runtime.declared import known_blocks
from dask_dgpu.runtime.plans import Plans
from dask_dgpu.runtime.program import Program
from dask_dgpu.runtime.ship import Form, Shipping
from graph_opt.model.cost import Hosts
from graph_opt.model.layout import CUPY, NUMPY, Index, dtype_named
from graph_opt.model.recipe import Block, Call

Together = Callable[[Sequence[Sequence[Any]]], list[Any]]
"""A function of the arguments of many calls."""

Here = tuple[int, str]
"""A rank, and the type of arrays on its device."""


@dataclass(frozen=True)
class Functions:
    """Calls of functions for blocks, after the transfers of what they read.

    ``needs`` is the number of blocks of all ranks. The device has other blocks if functions expect
    them ``on_host``. With ``once`` they may be a user's. ``together`` computes many blocks at once.
    """

    needs: int
    shipping: tuple[Shipping, ...]
    calls: Mapping[Index, Call]
    on_host: bool
    once: bool = False
    together: Together | None = None

    @classmethod
    def of(cls, program: Program, plans: Plans, number: int, here: Here) -> Functions:
        """Return a rank's calls for a value."""
        rank, container = here
        node, making = program.numbered[number], plans.makings[number]
        mine = [index for index, ranks in making.ranks.items() if rank in ranks]
        calls = program.blockworks.calls(number, mine)
        return cls(
            len(node.needs),
            shippings(making.shipments, rank, partial(known_blocks, program), container),
            calls,
            node.value.container == NUMPY != container,
            node.once or any(call.copied for call in calls.values()),
            _together(calls.values()),
        )


def _together(calls: Collection[Call]) -> Together | None:
    """Return the method of a function that all calls share which computes many blocks at once."""
    functions: list[Any] = [call.function for call in calls]
    alike = all(function is functions[0] for function in functions)
    return getattr(functions[0], "together", None) if functions and alike else None


class Declared(NamedTuple):
    """An input of a collective: its number, and its blocks as the graph declares them.

    ``owned`` are this rank's: a block that several ranks have computed belongs to the first of
    them. ``spent`` blocks are the operation's own.
    """

    number: int
    value: Value
    dtype: np.dtype[Any]
    shapes: Mapping[Index, tuple[int, ...]]
    owned: tuple[Index, ...]
    spent: bool

    @classmethod
    def of(cls, plans: Plans, number: int, value: Value, rank: int, spent: bool) -> Declared:
        """Return an input, by its number."""
        placed = plans.values[number].layout
        shapes = {index: value.block_shape(index) for index in value.indices()}
        owned, dtype = placed.owned(rank), dtype_named(value.dtype)
        return cls(number, value, dtype, shapes, owned, spent)


@dataclass(frozen=True)
class Operating:
    """A collective: ``run`` it on these inputs; it may keep facts about blocks.

    If it ``repeats``, it has the same launches each time.
    """

    run: Callable[..., Blocks | tuple[Blocks, Any]]
    inputs: tuple[Declared, ...]
    finds_facts: bool
    repeats: bool

    @classmethod
    def of(
        cls, program: Program, plans: Plans, number: int, here: Here, spent: Collection[int]
    ) -> Operating:
        """Return a rank's part of a collective; ``spent`` inputs are its own."""
        rank, _ = here
        node, plan = program.numbered[number], plans.collectives[number]
        operation = OPERATIONS[node.operation or ""]
        inputs = (
            Declared.of(plans, each, program.values[each], rank, each in spent)
            for each in node.reads
        )
        finds = operation.finds_facts is not None and operation.finds_facts(plan)
        repeats = not finds and (operation.repeats is None or operation.repeats(plan))
        prepare = operation.prepare
        run = partial(operation.run, plan) if prepare is None else prepare(plan, rank)
        return cls(run, tuple(inputs), finds, repeats)


class Step(NamedTuple):
    """A step of one rank: what is moved before it, and the values that end with it.

    ``number`` is that of its result, ``action`` that of its span.
    """

    number: int
    action: str
    moves: tuple[Shipping, ...]
    work: Functions | Operating
    ending: tuple[int, ...]

    @property
    def reads(self) -> set[int]:
        """The values whose blocks this rank reads or sends."""
        if isinstance(self.work, Operating):
            return {each.number for each in self.work.inputs}
        read = {number for call in self.work.calls.values() for number, _ in call.reads}
        return read | {each.value for shipping in self.work.shipping for each in shipping.out}

    @property
    def is_recordable(self) -> bool:
        """Whether its launches can be the same at each run.

        Those of users' functions may differ. Facts about blocks, and headers, are read by the host.
        """
        if self.moves:
            return False
        if isinstance(self.work, Operating):
            return self.work.repeats
        headers = not all(shipping.known for shipping in self.work.shipping)
        return not (self.work.once or headers or self.work.on_host)


LEAST_RECORDED = 8
"""Fewer steps are not worth the memory of a recording."""


@dataclass(frozen=True)
class Prepared:
    """What one rank of a program does.

    ``stretches`` are its steps, those that a GPU may record and others, ``results`` its blocks of
    the results and whether they leave its device. Collectives want the facts about ``observed``
    inputs. In gangs on several ``hosts``, collectives may run within hosts and then between them.
    """

    program: Program
    stretches: tuple[Stretch, ...]
    results: tuple[tuple[Block, bool], ...]
    observed: tuple[int, ...]
    hosts: Hosts

    @property
    def steps(self) -> list[Step]:
        """All steps in order."""
        return [step for stretch in self.stretches for step in stretch.steps]


@dataclass(frozen=True, eq=False)
class Stretch:
    """Consecutive steps, ``recordable`` if they can be one recording of a GPU."""

    steps: tuple[Step, ...]
    recordable: bool

    @cached_property
    def reads(self) -> tuple[int, ...]:
        """The values from before it whose blocks its steps use."""
        reads = dict.fromkeys(number for step in self.steps for number in step.reads)
        made = {step.number for step in self.steps}
        return tuple(number for number in reads if number not in made)


def shippings(
    shipments: Sequence[Shipment],
    rank: int,
    known: Callable[[Sequence[Shipment]], Mapping[Block, Form]] = lambda _: {},
    container: str = NUMPY,
) -> tuple[Shipping, ...]:
    """Return a rank's part of shipments: of declared blocks in a container, and of all others.

    ``known`` returns those of their blocks that are declared.
    """
    mine = [each for each in shipments if rank in (each.source, each.target)]
    if not mine:
        return ()
    declared = {at: each for at, each in known(mine).items() if each.container == container}
    parts: dict[bool, list[Shipment]] = {True: [], False: []}
    for each in mine:
        parts[(each.value, each.index) in declared].append(each)
    return tuple(
        Shipping(
            tuple(each for each in part if each.source == rank),
            tuple(each for each in part if each.target == rank),
            declared if is_known else {},
        )
        for is_known, part in parts.items()
        if part
    )


def _stretches(steps: Sequence[Step]) -> tuple[Stretch, ...]:
    """Return steps in stretches; a recording has at least :data:`LEAST_RECORDED` of them."""
    found: list[tuple[bool, list[Step]]] = []
    for recordable, group in groupby(steps, key=lambda step: step.is_recordable):
        some = list(group)
        recordable = recordable and len(some) >= LEAST_RECORDED
        if found and not (recordable or found[-1][0]):
            found[-1][1].extend(some)
        else:
            found.append((recordable, some))
    return tuple(Stretch(tuple(some), recordable) for recordable, some in found)


def prepared(program: Program, plans: Plans, rank: int, kind: str = "cpu") -> Prepared:
    """Return what a rank does on a kind of device, ``"cpu"`` or ``"cuda"``."""
    container = CUPY if kind == "cuda" else NUMPY
    steps, machine = list[Step](), program.machine
    nodes = zip(program.numbered.items(), program.ends, program.spent, strict=True)
    for (number, node), ending, spent in nodes:
        before = shippings(plans.moves.get(number, ()), rank)
        here = rank, container
        if node.operation is None:
            work: Functions | Operating = Functions.of(program, plans, number, here)
        else:
            work = Operating.of(program, plans, number, here, spent)
        action = "transfer" if node.operation == "rechunk" else "compute"
        steps.append(Step(number, action, before, work, tuple(ending)))
    results = (
        (block, program.values[block[0]].container == NUMPY != container)
        for block, owner in plans.results(program)
        if owner == rank
    )
    works = [step.work for step in steps if isinstance(step.work, Operating)]
    observed = {each.number: None for work in works if work.finds_facts for each in work.inputs}
    return Prepared(
        program,
        _stretches(steps),
        tuple(results),
        tuple(number for number in observed if number < len(program.inputs)),
        machine.hosts if machine.two_level(sum(machine.hosts)) else (),
    )
