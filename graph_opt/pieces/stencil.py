"""The piece of one or more sweeps of a stencil."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from graph_opt.model.cost import Machine, dask_rechunk_seconds
from graph_opt.model.layout import ArrayNode, counted
from graph_opt.model.piece import Piece

GHOSTS = 1 / 16
"""Most ghost cells on either side of a block, for sweeps by plain Dask; more save messages."""

RESIDUAL_SWEEPS = 3
"""Sweeps for the residuals of zeros, of the first array and of the last."""


@dataclass(frozen=True)
class StencilPiece(Piece):
    """Sweeps over all of the first of ``sources``, by the task ``sweeps``.

    The piece reads of the task: ``operation``, the largest number of ``iterations``, ``operations``
    of a sweep per element, ``reach``, the elements read on either side along each axis, and the
    ``boundary`` of each axis. The output has the blocks of the sources.
    """

    sources: tuple[ArrayNode, ...]
    sweeps: Any

    @property
    def operation(self) -> str:
        return self.sweeps.operation

    @property
    def task(self) -> Any:
        return self.sweeps

    @property
    def inputs(self) -> tuple[ArrayNode, ...]:
        return self.sources

    @property
    def summary(self) -> str:
        source, sweeps = self.sources[0], counted(self.sweeps.iterations, "sweep")
        return f"{source.shape} {source.dtype} in {source.blocks} blocks, {sweeps}"

    @property
    def facts(self) -> dict[str, Any]:
        source, sweeps = self.sources[0], self.sweeps.iterations
        return {**super().facts, "shape": source.shape, "chunks": source.chunks, "sweeps": sweeps}

    @property
    def rounds(self) -> int:
        """The exchanges of ghost cells by plain Dask, each for one sweep or several."""
        source, task = self.sources[0], self.sweeps
        sweeps = task.iterations
        if self.operation == "jacobi":
            return sweeps
        axes = zip(source.chunks, task.reach, task.boundary, strict=True)
        at_once = min(
            (
                int(GHOSTS * min(sizes)) // reach
                for sizes, reach, boundary in axes
                if reach and (len(sizes) > 1 or boundary == "periodic")
            ),
            default=sweeps,
        )
        return -(-sweeps // max(1, at_once))

    def dask_cost(self, ranks: int, machine: Machine) -> tuple[int, float]:
        """Return tasks and seconds of plain Dask: overlap, then a function per block."""
        source, sweeps, rounds = self.sources[0], self.sweeps.iterations, self.rounds
        if self.operation == "jacobi":
            sweeps, rounds = sweeps + RESIDUAL_SWEEPS, rounds + RESIDUAL_SWEEPS
        pieces = math.prod(3 * blocks - 2 for blocks in source.grid)
        tasks = pieces + 2 * source.blocks
        ghosts = sum(
            2 * reach * sweeps / rounds * (len(sizes) - 1) * source.nbytes / max(1, sum(sizes))
            for sizes, reach in zip(source.chunks, self.sweeps.reach, strict=True)
        )
        seconds = dask_rechunk_seconds(tasks, ghosts, source.nbytes, ranks, machine)
        # NumPy reads and writes memory for each operation
        work = self.sweeps.operations * 2 * source.nbytes / (machine.memory_bandwidth * ranks)
        return tasks * rounds, seconds * rounds + work * sweeps
