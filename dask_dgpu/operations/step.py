"""The steps of a program: local work on blocks, or a collective."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from dask_dgpu.operations.value import Value
from graph_opt.model.layout import Index

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
