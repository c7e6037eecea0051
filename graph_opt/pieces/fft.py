"""The piece of a Fourier transform along axes of any chunking."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from itertools import product as cartesian
from typing import Any

from graph_opt.model.cost import Machine, dask_rechunk_seconds
from graph_opt.model.layout import (
    ArrayNode,
    Chunks,
    Cuts,
    Index,
    Span,
    counted,
    cuts_of,
    overlaps,
)
from graph_opt.model.piece import Piece


@dataclass(frozen=True)
class FftPiece(Piece):
    """Transforms of ``source`` along some axes, by ``plan``.

    The piece reads ``flops`` and ``exchanges`` of the plan. These are its rechunks in order, from
    the chunks ``source`` to ``target``; a ``local`` one changes no chunk.

    A part of the array is transformed if ``spans`` are given: the elements along each axis, from
    a cut of both ``source`` and output to another, or ``None`` for all. It also reads the
    transformed ``axes`` of the plan, and the plan ``within`` the spans.
    """

    source: ArrayNode
    plan: Any
    spans: tuple[Span | None, ...] | None = None

    operation = "fft"

    @property
    def task(self) -> tuple[Any, Index, Index]:
        """The plan of the part, and the indices of its first blocks of source and output."""
        firsts = (tuple(along[0] for along in lines) for lines in self._lines)
        return self.part, *firsts

    @cached_property
    def part(self) -> Any:
        """The plan of the part."""
        return self.plan if self.spans is None else self.plan.within(self.spans)

    @cached_property
    def _lines(self) -> tuple[tuple[range, ...], tuple[range, ...]]:
        """The block indices along each axis of the source and of the output."""
        return self._lines_of(self.source.chunks), self._lines_of(self.output.chunks)

    def _lines_of(self, chunks: Chunks) -> tuple[range, ...]:
        spans = self.spans or (None,) * len(chunks)
        return tuple(
            range(len(sizes)) if span is None else _inside(sizes, span)
            for sizes, span in zip(chunks, spans, strict=True)
        )

    @cached_property
    def computed(self) -> tuple[Index, ...]:
        """The blocks of the output within the spans."""
        return tuple(cartesian(*self._lines[1]))

    @cached_property
    def staged(self) -> tuple[tuple[Index, ...], ...]:
        """The blocks of the source within the spans."""
        return (tuple(cartesian(*self._lines[0])),)

    @cached_property
    def units(self) -> tuple[Cuts, ...]:
        """The cuts of source and output along axes without transforms."""
        units = []
        for axis, sizes in enumerate(zip(self.source.chunks, self.output.chunks, strict=True)):
            before, after = map(cuts_of, sizes)
            free = axis not in self.plan.axes and before[-1] == after[-1] > 0
            common = {*before} & {*after} if free else {0, after[-1]}
            # empty chunks at a cut are with the chunk before it
            ends = {bisect_right(after, cut) - 1 for cut in common if cut}
            units.append((0, *sorted({*ends, len(sizes[1])})))
        return tuple(units)

    def restrict(self, wanted: frozenset[Index]) -> FftPiece:
        """Keep the units of wanted blocks."""
        spans: list[Span | None] = []
        for axis, (cuts, sizes) in enumerate(zip(self.units, self.output.chunks, strict=True)):
            lines = {index[axis] for index in wanted}
            lo = cuts[bisect_right(cuts, min(lines, default=0)) - 1]
            hi = cuts[bisect_right(cuts, max(lines, default=0))]
            span = sum(sizes[:lo]), sum(sizes[:hi])
            spans.append(None if (lo, hi) == (0, len(sizes)) else span)
        return replace(self, spans=tuple(spans) if any(spans) else None)

    @property
    def inputs(self) -> tuple[ArrayNode, ...]:
        return (self.source,)

    @property
    def summary(self) -> str:
        moves = sum(not exchange.local for exchange in self.part.exchanges)
        shape, dtype, blocks = self.output.shape, self.output.dtype, self.output.blocks
        some = "" if self.spans is None else f"{len(self.computed)} of "
        return f"{shape} {dtype} in {some}{blocks} blocks by {counted(moves, 'exchange')}"

    @property
    def facts(self) -> dict[str, Any]:
        return {
            **super().facts,
            "chunks_before": self.source.chunks,
            "chunks": self.output.chunks,
            "exchanges": [(exchange.source, exchange.target) for exchange in self.plan.exchanges],
        }

    def dask_cost(self, ranks: int, machine: Machine) -> tuple[int, float]:
        """Return tasks and seconds of plain Dask, which rechunks by tasks."""
        tasks, moved = 0, 0
        for exchange in self.part.exchanges:
            blocks = math.prod(map(len, exchange.target))
            if not exchange.local:
                tasks += _overlaps(exchange) + blocks
                moved += exchange.nbytes
            tasks += blocks  # one per block for the transform
        seconds = dask_rechunk_seconds(tasks, moved, moved, ranks, machine)
        return tasks, seconds + self.part.flops / (machine.transform_share * machine.flops * ranks)


def _overlaps(exchange: Any) -> int:
    """Return the number of pairs of blocks, before and after, with common elements."""
    pairs = zip(exchange.source, exchange.target, strict=True)
    return math.prod(
        sum(len([*overlaps(before, *span)]) for span in pairwise(after))
        for before, after in (map(cuts_of, pair) for pair in pairs)
    )


def _inside(sizes: tuple[int, ...], span: Span) -> range:
    """Return the chunks in a span from cut to cut, with the empty ones at its end."""
    cuts, (start, stop) = cuts_of(sizes), span
    first = bisect_right(cuts, start) - 1 if start else 0
    return range(first, bisect_right(cuts, stop) - 1)
