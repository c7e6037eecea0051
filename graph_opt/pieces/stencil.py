"""The piece of one or more sweeps of a stencil."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from graph_opt.model.cost import Machine, dask_rechunk_seconds
from graph_opt.model.layout import ArrayNode, Index
from graph_opt.model.piece import Piece

REPORT_SWEEPS = 3
"""Sweeps for a report: of zeros, of the first array and of the last."""


class SweepTask(Hashable, Protocol):
    """The properties of a task that the piece reads."""

    @property
    def operation(self) -> str:
        """``"stencil"`` or ``"jacobi"``."""

    @property
    def iterations(self) -> int:
        """The largest number of sweeps."""

    @property
    def operations(self) -> int:
        """Operations of a sweep per element."""

    @property
    def reach(self) -> tuple[int, ...]:
        """Elements that a sweep reads on either side, along each axis."""


@dataclass(frozen=True)
class StencilPiece(Piece):
    """Sweeps over all of the first of ``sources``, by the task ``sweeps``.

    The output has the blocks of the sources. It may have further blocks along the first axis;
    only the first of them is computed: a report.
    """

    sources: tuple[ArrayNode, ...]
    sweeps: SweepTask

    @property
    def operation(self) -> str:
        """``"stencil"`` or ``"jacobi"``."""
        return self.sweeps.operation

    @property
    def task(self) -> SweepTask:
        """The sweeps."""
        return self.sweeps

    @property
    def inputs(self) -> tuple[ArrayNode, ...]:
        """The sources."""
        return self.sources

    @property
    def summary(self) -> str:
        """Shape, dtype and sweeps."""
        source, count = self.sources[0], self.sweeps.iterations
        sweeps = "sweep" if count == 1 else "sweeps"
        return f"{source.shape} {source.dtype} in {source.blocks} blocks, {count} {sweeps}"

    @property
    def facts(self) -> dict[str, Any]:
        """Name, shape, dtype, chunks and sweeps."""
        source, sweeps = self.sources[0], self.sweeps.iterations
        return {**super().facts, "shape": source.shape, "chunks": source.chunks, "sweeps": sweeps}

    @cached_property
    def computed(self) -> tuple[Index, ...]:
        """All blocks, and the first of the further ones."""
        rows = len(self.sources[0].chunks[0])
        return tuple(i for i in self.output.indices if i[0] < rows or not any(i[1:]))

    def fault(self) -> str | None:
        """Return which chunks do not match, ``None`` if all do."""
        chunks = self.sources[0].chunks
        if any(source.chunks != chunks for source in self.sources):
            return "expected sources with the same chunks"
        rows = self.output.chunks[0][: len(chunks[0])]
        if (rows, *self.output.chunks[1:]) != chunks:
            return f"expected chunks {chunks}, got {self.output.chunks}"
        return None

    def dask_cost(self, ranks: int, machine: Machine) -> tuple[int, float]:
        """Return tasks and seconds of plain Dask: overlap, then a function per block."""
        source, sweeps = self.sources[0], self.sweeps.iterations
        if len(self.output.chunks[0]) > len(source.chunks[0]):
            sweeps += REPORT_SWEEPS
        pieces = math.prod(3 * blocks - 2 for blocks in source.grid)
        tasks = pieces + 2 * source.blocks
        ghosts = sum(
            2 * reach * (len(sizes) - 1) * source.nbytes / max(1, sum(sizes))
            for sizes, reach in zip(source.chunks, self.sweeps.reach, strict=True)
        )
        seconds = dask_rechunk_seconds(tasks, ghosts, source.nbytes, ranks, machine)
        # NumPy reads and writes memory for each operation
        work = self.sweeps.operations * 2 * source.nbytes / (machine.memory_bandwidth * ranks)
        return tasks * sweeps, (seconds + work) * sweeps
