"""Dask's own layers, which compute blocks without a collective."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

from dask.highlevelgraph import Layer

from graph_opt.model.cost import Work
from graph_opt.model.layout import ArrayNode, Index

Block = tuple[str, Index]


OPAQUE = "uint8"
"""Dtype of arrays that Dask does not declare: blocks count as their bytes, and may be anything."""


@dataclass(frozen=True)
class Blockwork:
    """One of Dask's layers, whose tasks compute blocks from whole blocks.

    ``needs`` are the input blocks of each computed block, in row-major order: names of arrays,
    and indices. With ``once`` each block is computed only once: its functions are a user's.

    If tasks of the layer read other tasks of it, these are steps ``before``, each of tasks that do
    not depend on each other, and ``works`` has the work for each block of such a step. The
    ``inputs`` and :meth:`reads` are those of all steps. ``plain`` are the steps of Dask's own
    tasks, if a gang does small ones together.
    """

    output: ArrayNode
    inputs: tuple[ArrayNode, ...]
    needs: Mapping[Index, tuple[Block, ...]]
    layer: Layer
    once: bool = False
    before: tuple[Blockwork, ...] = ()
    works: tuple[Work, ...] = ()
    plain: tuple[Blockwork, ...] = ()

    @cached_property
    def computed(self) -> tuple[Index, ...]:
        """The computed blocks, in row-major order."""
        return tuple(self.needs)

    @property
    def steps(self) -> tuple[Blockwork, ...]:
        """All steps, in order; this is the last."""
        return *self.before, self

    def reads(self) -> Iterator[Block]:
        """Yield the input blocks, some of them several times."""
        own = {step.output.name for step in self.before}
        blocks = chain.from_iterable(step.needs.values() for step in self.steps)
        return (block for block in chain.from_iterable(blocks) if block[0] not in own)

    def __dask_tokenize__(self) -> Any:
        return self.output.name, self.computed
