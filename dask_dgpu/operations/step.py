"""The steps of a program, local work on blocks or a collective, and how regions become steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from dask_dgpu.operations.value import Value
from graph_opt.model.layout import ArrayNode, Index, cuts_of
from graph_opt.pieces.region import Blockwork, Member

Need = tuple[int, Index]
"""Which input a block is made from, and the place of the block in it."""


@dataclass(frozen=True)
class Local:
    """Make each block of a value from whole blocks of others, by a function of Dask's own.

    Parameters
    ----------
    inputs : tuple of str
        The values it reads.
    output : str
        The value it makes.
    result : Value
        What that is, as the graph declares it.
    needs : tuple of tuple of (int, tuple of int)
        For each block of the result those that it is made from: which of the inputs, and
        place. Steps of a loop differ by names, and not in this.
    once : bool, optional
        Whether each block is to be made on one rank only, whoever reads it.
    """

    inputs: tuple[str, ...]
    output: str
    result: Value
    needs: tuple[tuple[Need, ...], ...]
    once: bool = False

    def blocks(self) -> dict[Index, tuple[Need, ...]]:
        """Return what each block of the result is made from."""
        return dict(zip(self.result.indices(), self.needs, strict=True))


@dataclass(frozen=True)
class Collective:
    """Run an operation: ``output = operation(inputs)``.

    Parameters
    ----------
    operation : str
        A key of :data:`dask_dgpu.operations.OPERATIONS`.
    inputs : tuple of str
        The values it reads.
    output : str
        The value it makes.
    result : Value
        What that is; the plan chooses where its blocks are.
    task : object, optional
        What the operation must know beside its inputs and its result.
    """

    operation: str
    inputs: tuple[str, ...]
    output: str
    result: Value
    task: Any = None


def shared(steps: Iterable[Local | Collective]) -> tuple[Local | Collective, ...]:
    """Have what is equal in steps be one object, which is described and sent once."""
    known: dict[Any, Any] = {}
    found: list[Local | Collective] = []
    for step in steps:
        parts = {"result": known.setdefault(step.result, step.result)}
        if isinstance(step, Local):
            parts["needs"] = known.setdefault(step.needs, step.needs)
        found.append(replace(step, **parts))
    return tuple(found)


def step_of(member: Member) -> Collective | Local:
    """Return the step for a piece or a layer of Dask's; values have the arrays' names."""
    output, result = member.output.name, value_of(member.output, member.computed)
    names = tuple(node.name for node in member.inputs)
    if not isinstance(member, Blockwork):
        return Collective(member.operation, names, output, result, member.task)
    at = {name: place for place, name in enumerate(names)}
    needs = tuple(
        tuple((at[name], need) for name, need in needs) for needs in member.needs.values()
    )
    return Local(names, output, result, needs, member.once)


def value_of(node: ArrayNode, blocks: tuple[Index, ...]) -> Value:
    """Return an array as a value of a program, with all of its blocks or some."""
    some = None if len(blocks) == node.blocks else blocks
    cuts = tuple(cuts_of(sizes) for sizes in node.chunks)
    return Value(cuts, node.dtype, some, node.container)
