"""The piece of a rechunk, of an array or of its transpose; its target is ``redistribute``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from graph_opt.model.cost import Machine, dask_rechunk_seconds
from graph_opt.model.layout import cuts_of, overlaps
from graph_opt.model.piece import SeparablePiece

Axes = tuple[int, ...]


@dataclass(frozen=True)
class RechunkPiece(SeparablePiece):
    """A rechunk of ``source``, or of its transpose: ``output = source.transpose(axes)``.

    Dask has so many ``tasks``, and ``merges`` of its passes join blocks instead of only cutting
    them.
    """

    axes: tuple[int, ...]
    tasks: int = 0
    merges: int = 0

    operation = "rechunk"
    only_moves = True

    @property
    def task(self) -> tuple[int, ...] | None:
        """The order of the source's axes, ``None`` if it does not change."""
        return None if self.axes == tuple(range(len(self.axes))) else self.axes

    @property
    def summary(self) -> str:
        before, after = (" x ".join(map(str, node.grid)) for node in (self.source, self.output))
        order = f", transposed to axes {self.axes}," if self.task is not None else ""
        part = "" if self.wanted is None else f"{len(self.wanted)} of "
        shape, dtype = self.output.shape, self.output.dtype
        return f"{shape} {dtype}{order} from {before} to {part}{after} blocks"

    @property
    def facts(self) -> dict[str, Any]:
        chunks = {"chunks_before": self.source.chunks, "chunks": self.output.chunks}
        return {**super().facts, "axes": self.axes, **chunks}

    @property
    def under(self) -> list[list[list[int]]]:
        """The chunks with elements of each chunk."""
        chunks = zip(self.source.chunks, self.turned(self.output.chunks), strict=True)
        return [
            [[chunk for chunk, *_ in overlaps(before, *span)] for span in pairwise(after)]
            for before, after in (map(cuts_of, chunk) for chunk in chunks)
        ]

    def turned(self, along: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(along[self.axes.index(axis)] for axis in range(len(self.axes)))

    @property
    def fits(self) -> bool:
        """Whether source and output have one shape."""
        return self.turned(self.output.shape) == self.source.shape

    def dask_cost(self, ranks: int, machine: Machine) -> tuple[int, float]:
        """Return tasks and seconds of plain Dask for the wanted blocks."""
        share = 1.0
        if self.wanted is not None:
            sizes = (math.prod(self.output.block_shape(index)) for index in self.wanted)
            share = sum(sizes) / max(1, self.output.size)
        tasks, written = round(share * self.tasks), share * self.output.nbytes * self.merges
        return tasks, dask_rechunk_seconds(tasks, written, written, ranks, machine)
