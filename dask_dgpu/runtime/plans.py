"""The plans of a program: fixed once, reused for the same structure, and sent to all ranks.

The optimizer plans a program for blocks that are dealt out evenly, the scheduler for the
blocks where they are. Both are in one process as a rule, so the second is a lookup unless
placement differs. Ranks get the scheduler's plans.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from dask_dgpu.operations import OPERATIONS
from dask_dgpu.operations.operation import Request
from dask_dgpu.operations.value import Local, Need, Placed, Value
from dask_dgpu.runtime.placement import Making, Placement
from dask_dgpu.runtime.program import Key, Program
from graph_opt.model.cost import Machine
from graph_opt.model.layout import Bare, Index

KEPT_PLANS = 32
"""Number of plans that a process keeps, with whatever ranks derive from them."""

Owners = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Stage:
    """A step without the names of arrays: values are numbered, inputs of the program first.

    ``operation``, ``task`` and the ``spent`` inputs are those of a collective. A local step has
    ``needs`` instead.
    """

    inputs: tuple[int, ...]
    result: Value
    operation: str | None = None
    task: Any = None
    spent: tuple[bool, ...] = ()
    needs: tuple[tuple[Need, ...], ...] = ()
    once: bool = False


@dataclass(frozen=True)
class Structure:
    """What plans depend on: a program without names, functions and time limits."""

    inputs: tuple[Value, ...]
    stages: tuple[Stage, ...]
    outputs: tuple[tuple[int, tuple[Index, ...]], ...]
    machine: Machine
    room: float | None

    @classmethod
    def of(cls, program: Program) -> Structure:
        """Return the structure of a program."""
        number = {name: at for at, name in enumerate(program.names)}
        stages = []
        for step, spent in zip(program.steps, program.spent, strict=True):
            inputs = tuple(number[name] for name in step.inputs)
            if isinstance(step, Local):
                stages.append(Stage(inputs, step.result, needs=step.needs, once=step.once))
            else:
                last = tuple(name in spent for name in step.inputs)
                stages.append(Stage(inputs, step.result, step.operation, step.task, last))
        outputs = tuple((number[name], blocks) for name, blocks in program.outputs)
        values = tuple(value for _, value in program.inputs)
        return cls(values, tuple(stages), outputs, program.machine, program.room)


@dataclass(frozen=True)
class Fixed(Bare):
    """The plans of a structure, the same on every rank.

    Parameters
    ----------
    collectives : mapping of int to plan
        The plan of each collective, by the number of its output.
    values : mapping of int to Placed
        The places of inputs, of inputs and outputs of collectives, and of results.
    makings : mapping of int to Making
        Where local steps make their values.
    """

    collectives: Mapping[int, Any]
    values: Mapping[int, Placed]
    makings: Mapping[int, Making]

    @cached_property
    def payload(self) -> bytes:
        """The plans as ranks get them, pickled once."""
        return pickle.dumps(self)


@dataclass(frozen=True)
class Plans:
    """The plans of a program, by the names of its values.

    Parameters
    ----------
    program : Program
        The program.
    fixed : Fixed
        The plans of its structure.
    """

    program: Program
    fixed: Fixed

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each value."""
        return {name: number for number, name in enumerate(self.program.names)}

    @cached_property
    def collectives(self) -> dict[str, Any]:
        """The plan of each collective, by the name of its output."""
        return self._named(self.fixed.collectives)

    @cached_property
    def values(self) -> dict[str, Placed]:
        """The places of inputs, of inputs and outputs of collectives, and of results."""
        return self._named(self.fixed.values)

    @cached_property
    def makings(self) -> dict[str, Making]:
        """Where local steps make their values."""
        return self._named(self.fixed.makings)

    def _named(self, numbered: Mapping[int, Any]) -> dict[str, Any]:
        names = self.program.names
        return {names[number]: each for number, each in numbered.items()}

    def placed(self) -> dict[Key, int]:
        """Return the rank that ends up with each block of the results."""
        return {
            (name, *index): self.values[name].layout.owner(index)
            for name, blocks in self.program.outputs
            for index in blocks
        }


def plans(program: Program, owners: Owners, size: int) -> Plans:
    """Plan a program for ``size`` ranks.

    ``owners`` gives for each input the rank of each block there is, in row-major order.
    """
    held = tuple(tuple(owners[name]) for name, _ in program.inputs)
    return Plans(program, _fixed(Structure.of(program), held, size))


@lru_cache(maxsize=KEPT_PLANS)
def received(payload: bytes) -> Fixed:
    """Return the plans that the scheduler has sent, and the same object for the same plans."""
    fixed: Fixed = pickle.loads(payload)
    return fixed


@lru_cache(maxsize=KEPT_PLANS)
def _fixed(structure: Structure, owners: tuple[tuple[int, ...], ...], size: int) -> Fixed:
    placement = Placement(size)
    values: dict[int, Placed] = {}
    for number, (value, held) in enumerate(zip(structure.inputs, owners, strict=True)):
        values[number] = value.placed(held)
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
    return Fixed(collectives, values, {number: placement.making(number) for number in local})


@lru_cache(maxsize=KEPT_PLANS)
def _planned(operation: str, request: Request) -> Any:
    """Return the plan of a collective; the steps of a loop share one."""
    return OPERATIONS[operation].plan(request)
