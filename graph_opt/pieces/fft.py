"""The piece of a Fourier transform along axes of any chunking."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from graph_opt.model.cost import TRANSFORM_SHARE, Machine, dask_rechunk_seconds
from graph_opt.model.layout import ArrayNode, Chunks, common_lengths, cuts_of
from graph_opt.model.piece import Piece


class Move(Protocol):
    """A rechunk within a transform."""

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
        """Whether no chunk changes."""


class TransformPlan(Hashable, Protocol):
    """The properties of a plan that the piece reads."""

    @property
    def exchanges(self) -> Sequence[Move]:
        """The rechunks, in order."""

    @property
    def flops(self) -> float:
        """Floating-point operations."""


@dataclass(frozen=True)
class FftPiece(Piece):
    """Transforms of all of ``source`` along some axes, by ``plan``."""

    source: ArrayNode
    plan: TransformPlan

    operation = "fft"

    @property
    def task(self) -> TransformPlan:
        """The plan."""
        return self.plan

    @property
    def inputs(self) -> tuple[ArrayNode, ...]:
        """The source."""
        return (self.source,)

    @property
    def summary(self) -> str:
        """Shape, dtype, blocks and the number of exchanges."""
        moves = sum(not exchange.local for exchange in self.plan.exchanges)
        exchanges = "exchange" if moves == 1 else "exchanges"
        shape, dtype = self.output.shape, self.output.dtype
        return f"{shape} {dtype} in {self.output.blocks} blocks by {moves} {exchanges}"

    @property
    def facts(self) -> dict[str, Any]:
        """Name, shape, dtype, chunks before and after, and exchanges."""
        return {
            **super().facts,
            "chunks_before": self.source.chunks,
            "chunks": self.output.chunks,
            "exchanges": [(each.source, each.target) for each in self.plan.exchanges],
        }

    def fault(self) -> str | None:
        """Return which chunks do not match the plan, ``None`` if all do."""
        exchanges = self.plan.exchanges
        if exchanges[0].source != self.source.chunks:
            return f"expected source chunks {exchanges[0].source}, got {self.source.chunks}"
        if exchanges[-1].target != self.output.chunks:
            return f"expected chunks {exchanges[-1].target}, got {self.output.chunks}"
        return None

    def dask_cost(self, ranks: int, machine: Machine) -> tuple[int, float]:
        """Return tasks and seconds of plain Dask, which rechunks by tasks."""
        tasks, moved = 0, 0
        for exchange in self.plan.exchanges:
            blocks = math.prod(map(len, exchange.target))
            if not exchange.local:
                tasks += _overlaps(exchange) + blocks
                moved += exchange.nbytes
            tasks += blocks  # one per block for the transform
        seconds = dask_rechunk_seconds(tasks, moved, moved, ranks, machine)
        return tasks, seconds + self.plan.flops / (TRANSFORM_SHARE * machine.flops * ranks)


def _overlaps(exchange: Move) -> int:
    """Return the number of pairs of blocks, before and after, with common elements."""
    pairs = zip(exchange.source, exchange.target, strict=True)
    return math.prod(
        int((common_lengths(cuts_of(before), cuts_of(after)) > 0).sum()) for before, after in pairs
    )
