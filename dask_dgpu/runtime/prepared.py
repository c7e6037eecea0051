"""What one rank does in each step of a program, resolved once from the program and its plans.

A program may run many times, and a step may be a few microseconds of work. So names, places, dtypes
and functions are looked up here, not while it runs. Values have numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby
from typing import Any, NamedTuple

import numpy as np

from dask_dgpu.operations import OPERATIONS
from dask_dgpu.operations.operation import Blocks, Shipment, Value
from dask_dgpu.runtime.declared import known_blocks
from dask_dgpu.runtime.placement import Groups
from dask_dgpu.runtime.plans import Plans
from dask_dgpu.runtime.program import Program
from dask_dgpu.runtime.ship import NOTHING, Form, Shipping
from graph_opt.model.layout import CUPY, NUMPY, Index, dtype_named
from graph_opt.model.recipe import Block, TaskCall

Together = Callable[[Sequence[Sequence[Any]]], list[Any]]
"""A function of the arguments of many calls."""


@dataclass(frozen=True)
class Functions:
    """Calls of functions for blocks, after the transfers of what they read.

    ``needs`` is the number of blocks of all ranks. The device has other blocks if functions expect
    them ``on_host``. With ``once`` they may be a user's. ``together`` computes many blocks at once.
    Each of the ``groups`` of parts of sums is merged into its first.
    """

    needs: int
    shipping: tuple[Shipping, ...]
    calls: Mapping[Index, TaskCall]
    on_host: bool
    once: bool = False
    together: Together | None = None
    groups: Groups = ()
    merges: bool = False

    @classmethod
    def of(
        cls, program: Program, plans: Plans, number: int, rank: int, container: str
    ) -> Functions:
        """Return a rank's calls for a value; ``container`` are the arrays of its device."""
        node, making = program.numbered[number], plans.makings[number]
        mine = [index for index, ranks in making.ranks.items() if rank in ranks]
        calls = program.blockworks.calls(number, mine)
        moved = [
            shipment for shipment in making.shipments if rank in (shipment.source, shipment.target)
        ]
        functions = {id(call.function): call.function for call in calls.values()}
        (function,) = functions.values() if len(functions) == 1 else (None,)
        return cls(
            len(node.needs),
            shippings(moved, rank, known_blocks(program, moved, container)),
            calls,
            node.value.container == NUMPY != container,
            node.once or any(call.copied for call in calls.values()),
            getattr(function, "together", None),  # of a function that all calls share
            tuple(group for group in making.groups if rank in making.ranks[group[0]]),
            node.merges,
        )


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
    def of(cls, program: Program, plans: Plans, number: int, rank: int, spent: bool) -> Declared:
        """Return an input, by its number."""
        value, owned = program.values[number], plans.values[number].layout.owned(rank)
        shapes = {index: value.block_shape(index) for index in value.indices()}
        return cls(number, value, dtype_named(value.dtype), shapes, owned, spent)


@dataclass(frozen=True)
class Operating:
    """A collective: ``run`` it on these inputs. If it ``repeats``, it has the same launches."""

    run: Callable[..., Blocks | tuple[Blocks, Any]]
    inputs: tuple[Declared, ...]
    repeats: bool

    @classmethod
    def of(
        cls, program: Program, plans: Plans, number: int, rank: int, own: Collection[int]
    ) -> Operating:
        """Return a rank's part of a collective; some inputs are its ``own``."""
        node, plan = program.numbered[number], plans.collectives[number]
        operation = OPERATIONS[node.operation or ""]
        inputs = (Declared.of(program, plans, read, rank, read in own) for read in node.reads)
        repeats = operation.repeats is None or operation.repeats(plan)
        prepare = operation.prepare
        run = partial(operation.run, plan) if prepare is None else prepare(plan, rank)
        return cls(run, tuple(inputs), repeats)


class RankStep(NamedTuple):
    """A step of one rank: what is moved before it, and the values that end with it.

    ``number`` is that of its result, ``action`` that of its span.
    """

    number: int
    action: str
    moves: tuple[Shipping, ...]
    work: Functions | Operating
    ending: tuple[int, ...]

    @property
    def is_recordable(self) -> bool:
        """Whether its launches can be the same at each run.

        Those of users' functions may differ. Headers are read by the host.
        """
        if self.moves:
            return False
        if isinstance(self.work, Operating):
            return self.work.repeats
        headers = not all(each.known for each in self.work.shipping)
        return not (self.work.once or headers or self.work.on_host)


LEAST_RECORDED = 8
"""Fewer steps are not worth the memory of a recording."""


@dataclass(frozen=True, eq=False)
class Stretch:
    """Consecutive steps, which read values from before them.

    They are ``recordable`` if they can be one recording of a GPU.
    """

    steps: tuple[RankStep, ...]
    reads: tuple[int, ...]
    recordable: bool


@dataclass(frozen=True)
class Prepared:
    """What one rank of a program does.

    ``stretches`` are its steps, those that a GPU may record and others, ``results`` its blocks of
    the results and whether they leave its device.
    """

    program: Program
    stretches: tuple[Stretch, ...]
    results: tuple[tuple[Block, bool], ...]


def shippings(
    shipments: Iterable[Shipment], rank: int, known: Mapping[Block, Form] = NOTHING
) -> tuple[Shipping, ...]:
    """Return a rank's part of shipments: of blocks with ``known`` forms, and of all others."""
    shippings = []
    for is_known in (True, False):
        mine = [shipment for shipment in shipments if (shipment.block in known) == is_known]
        out = tuple((each.block, each.target) for each in mine if each.source == rank)
        expected = tuple((each.block, each.source) for each in mine if each.target == rank)
        if out or expected:
            shippings.append(Shipping(out, expected, known if is_known else NOTHING))
    return tuple(shippings)


def _stretches(program: Program, steps: Sequence[RankStep]) -> Iterator[Stretch]:
    """Yield steps in stretches; a recording has at least :data:`LEAST_RECORDED` of them."""
    for recordable, group in groupby(steps, key=lambda step: step.is_recordable):
        some = tuple(group)
        made = {step.number for step in some}
        reads = chain.from_iterable(program.numbered[number].reads for number in made)
        before = dict.fromkeys(number for number in reads if number not in made)
        yield Stretch(some, tuple(before), recordable and len(some) >= LEAST_RECORDED)


def prepared(program: Program, plans: Plans, rank: int, kind: str = "cpu") -> Prepared:
    """Return what a rank does on a kind of device, ``"cpu"`` or ``"cuda"``."""
    container = CUPY if kind == "cuda" else NUMPY
    steps = list[RankStep]()
    for (number, node), ending in zip(program.numbered.items(), program.ends, strict=True):
        before = shippings(plans.moves.get(number, ()), rank)
        if node.operation is None:
            work: Functions | Operating = Functions.of(program, plans, number, rank, container)
        else:
            work = Operating.of(program, plans, number, rank, program.made(ending))
        action = "transfer" if node.operation == "rechunk" else "compute"
        steps.append(RankStep(number, action, before, work, tuple(ending)))
    results = (
        (block, program.values[block[0]].container == NUMPY != container)
        for block, owner in plans.results(program)
        if owner == rank
    )
    return Prepared(program, tuple(_stretches(program, steps)), tuple(results))
