"""The piece that is a Fourier transform along axes of any chunking."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from graph_opt.model.cost import TRANSFORM_SHARE, Machine, dask_rechunk_seconds
from graph_opt.model.layout import Index, cuts_of
from graph_opt.model.node import ArrayNode, Chunks, label
from graph_opt.model.overlap import common_lengths


class Move(Protocol):
    """An array that changes its chunks."""

    @property
    def source(self) -> Chunks:
        """Chunks before."""

    @property
    def target(self) -> Chunks:
        """Chunks after."""

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""

    @property
    def local(self) -> bool:
        """Whether every block stays what it is."""


class TransformPlan(Hashable, Protocol):
    """What the piece must know of the plan that its layer carries."""

    @property
    def exchanges(self) -> Sequence[Move]:
        """What moves, in order."""

    @property
    def flops(self) -> float:
        """Floating-point operations."""


@dataclass(frozen=True)
class Fourier:
    """Transforms of ``source`` along some axes, as ``plan`` says; all of it is made."""

    output: ArrayNode
    source: ArrayNode
    plan: TransformPlan

    @property
    def inputs(self) -> tuple[ArrayNode, ...]:
        """The array that is transformed."""
        return (self.source,)

    @property
    def inner(self) -> tuple[str, ...]:
        """The one layer."""
        return (self.output.name,)

    @property
    def label(self) -> str:
        """The name that a user is told."""
        return label(self.output.name)

    @property
    def summary(self) -> str:
        """Shape, dtype, and how often all blocks move."""
        moves = sum(not exchange.local for exchange in self.plan.exchanges)
        exchanges = "exchange" if moves == 1 else "exchanges"
        shape, dtype = self.output.shape, self.output.dtype
        return f"{shape} {dtype} in {self.output.blocks} blocks by {moves} {exchanges}"

    @property
    def facts(self) -> dict[str, Any]:
        """Name, shape, dtype, chunks before and after, and between."""
        return {
            "name": self.output.name,
            "shape": self.output.shape,
            "dtype": self.output.dtype,
            "chunks_before": self.source.chunks,
            "chunks": self.output.chunks,
            "exchanges": [(each.source, each.target) for each in self.plan.exchanges],
        }

    @cached_property
    def computed(self) -> tuple[Index, ...]:
        """All blocks: each needs all others."""
        return tuple(self.output.indices)

    @cached_property
    def staged(self) -> tuple[tuple[Index, ...], ...]:
        """All blocks of the input."""
        return (tuple(self.source.indices),)

    def restrict(self, wanted: frozenset[Index]) -> Fourier:
        """Return the whole: a part costs as much."""
        return self

    def fault(self) -> str | None:
        """Return why it cannot be right, ``None`` if it can."""
        exchanges = self.plan.exchanges
        if exchanges[0].source != self.source.chunks:
            return f"a transform of {exchanges[0].source} cannot read {self.source.chunks}"
        if exchanges[-1].target != self.output.chunks:
            return f"a transform to {exchanges[-1].target} cannot make {self.output.chunks}"
        return None

    def dask_cost(self, ranks: int, machine: Machine) -> tuple[int, float]:
        """Return tasks and seconds of plain Dask, which rechunks by tasks."""
        tasks, moved = 0, 0
        for exchange in self.plan.exchanges:
            blocks = math.prod(map(len, exchange.target))
            if not exchange.local:
                tasks += _overlaps(exchange) + blocks
                moved += exchange.nbytes
            tasks += blocks  # one a block transforms it
        seconds = dask_rechunk_seconds(tasks, moved, moved, ranks, machine)
        return tasks, seconds + self.plan.flops / (TRANSFORM_SHARE * machine.flops * ranks)


def _overlaps(exchange: Move) -> int:
    """Return the number of pairs of blocks, one of each chunking, that share something."""
    pairs = zip(exchange.source, exchange.target, strict=True)
    return math.prod(
        int((common_lengths(cuts_of(before), cuts_of(after)) > 0).sum()) for before, after in pairs
    )
