"""The piece that gives every block ghost cells: parts of its neighbours, or of a boundary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product as cartesian
from typing import Any

from graph_opt.model.cost import ROUND_TRIP_SECONDS, Machine, dask_rechunk_seconds
from graph_opt.model.layout import Index
from graph_opt.model.node import ArrayNode, Chunks, label
from graph_opt.pieces.piece import SeparablePiece

Depth = tuple[int, int]
Boundary = str | complex | None
"""``"reflect"``, ``"periodic"``, ``"nearest"``, the value of a constant, ``None`` for no cells."""


def extended(
    chunks: Chunks, depth: Sequence[Depth], boundary: Sequence[Boundary]
) -> tuple[tuple[int, ...], ...]:
    """Return the chunk sizes with ghost cells: beyond the edges only where there is a boundary."""
    found = []
    for sizes, (before, after), kind in zip(chunks, depth, boundary, strict=True):
        last = len(sizes) - 1
        found.append(
            tuple(
                size
                + (before if at > 0 or kind is not None else 0)
                + (after if at < last or kind is not None else 0)
                for at, size in enumerate(sizes)
            )
        )
    return tuple(found)


@dataclass(frozen=True)
class OverlapPiece(SeparablePiece):
    """Every block of ``source`` extended by ghost cells, ``depth`` of them before and after.

    Parameters
    ----------
    output, source : ArrayNode
        With ghost cells and without; block for block the same grid.
    depth : tuple of (int, int)
        For each axis the ghost cells before and after a block.
    boundary : tuple of str, number or None
        For each axis what lies beyond the edges of the array, ``None`` for nothing.
    edges : int
        Tasks of Dask's that make what lies beyond the edges.
    """

    source: ArrayNode
    depth: tuple[Depth, ...]
    boundary: tuple[Boundary, ...]
    edges: int = 0

    operation = "overlap"
    only_moves = True

    @property
    def inputs(self) -> tuple[ArrayNode, ...]:
        """The array without ghost cells."""
        return (self.source,)

    @property
    def task(self) -> tuple[tuple[Depth, ...], tuple[Boundary, ...]]:
        """Depth and boundary."""
        return self.depth, self.boundary

    @property
    def label(self) -> str:
        """The name that a user is told."""
        return label(self.layers[0])

    @property
    def summary(self) -> str:
        """Shape, dtype, blocks, depth and boundary."""
        part = "" if self.wanted is None else f"{len(self.wanted)} of "
        depth = ", ".join(_shown(each) for each in self.depth)
        kinds = ", ".join("none" if kind is None else str(kind) for kind in self.boundary)
        shape, dtype, blocks = self.source.shape, self.source.dtype, self.source.blocks
        return f"{shape} {dtype} in {part}{blocks} blocks, halo of depth {depth}, boundary {kinds}"

    @property
    def facts(self) -> dict[str, Any]:
        """Name, shape, dtype, chunks before and after, depth and boundary."""
        return {
            **super().facts,
            "chunks_before": self.source.chunks,
            "chunks": self.output.chunks,
            "depth": self.depth,
            "boundary": self.boundary,
        }

    @cached_property
    def staged(self) -> tuple[tuple[Index, ...], ...]:
        """The wanted blocks and their neighbours."""
        if self.wanted is None:
            return (tuple(self.source.indices),)
        around = self._around
        read = {
            index
            for at in self.wanted
            for index in cartesian(*(axis[i] for axis, i in zip(around, at, strict=True)))
        }
        return (tuple(sorted(read)),)

    @property
    def _around(self) -> list[list[set[int]]]:
        """For each axis and each chunk of it, the chunks that it is made from."""
        found = []
        for sizes, (before, after), kind in zip(
            self.source.chunks, self.depth, self.boundary, strict=True
        ):
            count = len(sizes)
            turns = kind == "periodic"
            found.append(
                [
                    {at}
                    | ({(at - 1) % count} if before and (at > 0 or turns) else set())
                    | ({(at + 1) % count} if after and (at < count - 1 or turns) else set())
                    for at in range(count)
                ]
            )
        return found

    def __dask_tokenize__(self) -> Any:
        return "halo", self.output.name, self.wanted  # Dask's name tells all the rest

    def fault(self) -> str | None:
        """Return why it cannot be right, ``None`` if it can."""
        source, output = self.source, self.output
        if len(self.depth) != source.ndim or len(self.boundary) != source.ndim:
            return f"depth and boundary of {len(self.depth)} axes do not fit {source.ndim}"
        if output.chunks != extended(source.chunks, self.depth, self.boundary):
            return "its chunks are not those of its source and the halo"
        if source.dtype != output.dtype:
            return f"a halo of {source.dtype} cannot be {output.dtype}"
        return super().fault()

    def dask_cost(self, ranks: int, machine: Machine) -> tuple[int, float]:
        """Return tasks and seconds of plain Dask: slices, and their concatenation, a block.

        Nothing can be concatenated before its slices are made and have come.
        """
        pieces = math.prod(
            sum(
                1
                + (before > 0 and (at > 0 or kind is not None))
                + (after > 0 and (at < len(sizes) - 1 or kind is not None))
                for at in range(len(sizes))
            )
            for sizes, (before, after), kind in zip(
                self.source.chunks, self.depth, self.boundary, strict=True
            )
        )
        share = len(self.computed) / max(1, self.source.blocks)
        tasks = round(share * (pieces + self.edges))
        written = share * self.output.nbytes
        moved = share * (self.output.nbytes - self.source.nbytes)
        seconds = dask_rechunk_seconds(tasks, moved, written, ranks, machine)
        return tasks, seconds + 2 * ROUND_TRIP_SECONDS


def _shown(depth: Depth) -> str:
    before, after = depth
    return str(before) if before == after else f"{before} and {after}"
