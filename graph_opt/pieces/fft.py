"""The piece of a Fourier transform along axes of any chunking."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from graph_opt.model.cost import Machine, dask_rechunk_seconds
from graph_opt.model.layout import ArrayNode, common_lengths, counted, cuts_of
from graph_opt.model.piece import Piece


@dataclass(frozen=True)
class FftPiece(Piece):
    """Transforms of all of ``source`` along some axes, by ``plan``.

    The piece reads ``flops`` and ``exchanges`` of the plan. These are its rechunks in order, from
    the chunks ``source`` to ``target``; a ``local`` one changes no chunk.
    """

    source: ArrayNode
    plan: Any

    operation = "fft"

    @property
    def task(self) -> Any:
        return self.plan

    @property
    def inputs(self) -> tuple[ArrayNode, ...]:
        return (self.source,)

    @property
    def summary(self) -> str:
        moves = sum(not exchange.local for exchange in self.plan.exchanges)
        shape, dtype = self.output.shape, self.output.dtype
        return f"{shape} {dtype} in {self.output.blocks} blocks by {counted(moves, 'exchange')}"

    @property
    def facts(self) -> dict[str, Any]:
        return {
            **super().facts,
            "chunks_before": self.source.chunks,
            "chunks": self.output.chunks,
            "exchanges": [(each.source, each.target) for each in self.plan.exchanges],
        }

    def fault(self) -> str | None:
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
        return tasks, seconds + self.plan.flops / (machine.transform_share * machine.flops * ranks)


def _overlaps(exchange: Any) -> int:
    """Return the number of pairs of blocks, before and after, with common elements."""
    pairs = zip(exchange.source, exchange.target, strict=True)
    return math.prod(
        int((common_lengths(cuts_of(before), cuts_of(after)) > 0).sum()) for before, after in pairs
    )
