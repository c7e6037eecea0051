"""The piece of ghost cells around every block; its target is ``halo``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from graph_opt.model.cost import Machine, dask_rechunk_seconds
from graph_opt.model.layout import Chunks
from graph_opt.model.piece import SeparablePiece

Depth = tuple[int, int]
Boundary = str | complex | None
"""``"reflect"``, ``"periodic"``, ``"nearest"``, a constant, or ``None`` for no boundary."""


def ghosts(count: int, depth: Depth, boundary: Boundary) -> list[Depth]:
    """Return the ghost cells before and after each of ``count`` chunks of an axis.

    Without a boundary there are none beyond the edges.
    """
    depths = [depth] * count
    if boundary is None:
        depths[0] = (0, depths[0][1])
        depths[-1] = (depths[-1][0], 0)
    return depths


def extended(
    chunks: Chunks, depth: Sequence[Depth], boundary: Sequence[Boundary]
) -> tuple[tuple[int, ...], ...]:
    """Return the chunk sizes with ghost cells."""
    lengths = []
    for sizes, width, kind in zip(chunks, depth, boundary, strict=True):
        around = ghosts(len(sizes), width, kind)
        lengths.append(tuple(size + sum(ghost) for size, ghost in zip(sizes, around, strict=True)))
    return tuple(lengths)


@dataclass(frozen=True)
class OverlapPiece(SeparablePiece):
    """Every block of ``source``, extended by ghost cells; ``output`` has the same grid.

    For each axis, ``depth`` are the ghost cells before and after a block, and ``boundary`` is
    the boundary. ``edges`` counts Dask's tasks for boundaries.
    """

    depth: tuple[Depth, ...]
    boundary: tuple[Boundary, ...]
    edges: int = 0

    operation = "overlap"
    only_moves = True

    @property
    def task(self) -> tuple[tuple[Depth, ...], tuple[Boundary, ...]]:
        return self.depth, self.boundary

    @property
    def title(self) -> str:
        """The first layer, whose name has the operation."""
        return self.layers[0]

    @property
    def summary(self) -> str:
        part = "" if self.wanted is None else f"{len(self.wanted)} of "
        depth = ", ".join(_shown(each) for each in self.depth)
        kinds = ", ".join("none" if kind is None else str(kind) for kind in self.boundary)
        shape, dtype, blocks = self.source.shape, self.source.dtype, self.source.blocks
        return f"{shape} {dtype} in {part}{blocks} blocks, halo of depth {depth}, boundary {kinds}"

    @property
    def facts(self) -> dict[str, Any]:
        return {
            **super().facts,
            "chunks_before": self.source.chunks,
            "chunks": self.output.chunks,
            "depth": self.depth,
            "boundary": self.boundary,
        }

    @property
    def under(self) -> list[list[set[int]]]:
        """Each chunk and its neighbours."""
        blocks = []
        for count, depth, kind in zip(self.source.grid, self.depth, self.boundary, strict=True):
            ghost = enumerate(ghosts(count, depth, kind if kind == "periodic" else None))
            blocks.append(
                [
                    {at, (at - bool(before)) % count, (at + bool(after)) % count}
                    for at, (before, after) in ghost
                ]
            )
        return blocks

    @property
    def fits(self) -> bool:
        """Whether the declared chunks are those of the source with ghost cells."""
        return self.output.chunks == extended(self.source.chunks, self.depth, self.boundary)

    def dask_cost(self, ranks: int, machine: Machine) -> tuple[int, float]:
        """Return tasks and seconds of plain Dask: slices and their concatenation, per block.

        A concatenation waits for its slices: a round trip.
        """
        axes = zip(self.source.grid, self.depth, self.boundary, strict=True)
        pieces = math.prod(
            sum(1 + (before > 0) + (after > 0) for before, after in ghosts(*axis)) for axis in axes
        )
        share = len(self.computed) / max(1, self.source.blocks)
        tasks = round(share * (pieces + self.edges))
        written = share * self.output.nbytes
        moved = share * (self.output.nbytes - self.source.nbytes)
        seconds = dask_rechunk_seconds(tasks, moved, written, ranks, machine)
        return tasks, seconds + machine.round_trip_seconds


def _shown(depth: Depth) -> str:
    before, after = depth
    return str(before) if before == after else f"{before} and {after}"
