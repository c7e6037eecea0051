"""The piece of ghost cells around every block, and its rule; its target is ``halo``.

``da.map_overlap`` builds one layer for the cells of neighbours. For a boundary it adds several
layers before it, axis by axis, and one after it::

    getitem, getitem (-> repeat)   slices at both edges           reflect, periodic, nearest
    full_like                      or a value                     constant
    concatenate                    edge, array, edge: one more chunk on either side
      ...                          the same for the next axis
    overlap                        slices of neighbours, concatenated
    getitem                        drops the chunks of the boundary

All these are one piece. If they look otherwise, the ``overlap`` layer alone is a piece without
a boundary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product as cartesian
from operator import add
from typing import Any

from graph_opt.dask_graph.internals import ArrayOverlapLayer
from graph_opt.dask_graph.parse import ArrayGraph, Rule, only_reader, unsupported
from graph_opt.model.cost import Machine, dask_rechunk_seconds
from graph_opt.model.layout import ArrayNode, Chunks, Declined, Index
from graph_opt.model.piece import SeparablePiece
from graph_opt.pieces.boundary import Boundary, edge_of, target_of

Depth = tuple[int, int]


def ghosts(count: int, depth: Depth, boundary: Boundary) -> list[Depth]:
    """Return the ghost cells before and after each of ``count`` chunks of an axis.

    Without a boundary there are none beyond the edges.
    """
    found = [depth] * count
    if boundary is None:
        found[0] = (0, found[0][1])
        found[-1] = (found[-1][0], 0)
    return found


def extended(
    chunks: Chunks, depth: Sequence[Depth], boundary: Sequence[Boundary]
) -> tuple[tuple[int, ...], ...]:
    """Return the chunk sizes with ghost cells."""
    found = []
    for sizes, width, kind in zip(chunks, depth, boundary, strict=True):
        around = ghosts(len(sizes), width, kind)
        found.append(tuple(size + sum(ghost) for size, ghost in zip(sizes, around, strict=True)))
    return tuple(found)


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

    @cached_property
    def staged(self) -> tuple[tuple[Index, ...], ...]:
        """The wanted blocks and their neighbours."""
        if self.wanted is None:
            return (tuple(self.source.indices),)
        around: list[list[set[int]]] = []  # for each axis the neighbours of each of its chunks
        for count, depth, kind in zip(self.source.grid, self.depth, self.boundary, strict=True):
            ghost = enumerate(ghosts(count, depth, kind if kind == "periodic" else None))
            around.append(
                [
                    {at, (at - bool(before)) % count, (at + bool(after)) % count}
                    for at, (before, after) in ghost
                ]
            )
        read = {
            index
            for at in self.wanted
            for index in cartesian(*(axis[i] for axis, i in zip(around, at, strict=True)))
        }
        return (tuple(sorted(read)),)

    def __dask_tokenize__(self) -> Any:
        return "halo", self.output.name, self.wanted  # Dask's name depends on all the rest

    def fault(self) -> str | None:
        source, output = self.source, self.output
        if len(self.depth) != source.ndim or len(self.boundary) != source.ndim:
            return f"expected depth and boundary of {source.ndim} axes, got {len(self.depth)}"
        chunks = extended(source.chunks, self.depth, self.boundary)
        if output.chunks != chunks:
            return f"expected chunks {chunks}, got {output.chunks}"
        if source.dtype != output.dtype:
            return f"expected dtype {source.dtype}, got {output.dtype}"
        return super().fault()

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


def match(graph: ArrayGraph, name: str) -> OverlapPiece | Declined:
    """Match the overlap whose layer is ``name``."""
    layer: Any = graph.layers[name]
    source, output = graph.node(layer.name), graph.node(name)
    if source is None or output is None:
        return Declined(name, "its array is not a Dask array with known facts")
    reason = unsupported((source,), output)
    if reason is not None:
        return Declined(name, reason)
    depth = tuple(_depth(layer.axes.get(axis, 0)) for axis in range(source.ndim))
    if any(min(each) < 0 for each in depth):
        return Declined(name, "the depth of the overlap is negative")
    if any(_thin(sizes, each) for sizes, each in zip(source.chunks, depth, strict=True)):
        return Declined(name, "a chunk is thinner than the depth of the overlap")
    bounded = _bounded(graph, name, source, output, depth)
    piece = bounded or OverlapPiece(output, source, depth, (None,) * source.ndim, inner=(name,))
    fault = piece.fault()
    return piece if fault is None else Declined(name, fault)


RULE = Rule(match, layers=(ArrayOverlapLayer,))


def _depth(value: Any) -> Depth:
    before, after = value if isinstance(value, tuple) else (value, value)
    return int(before), int(after)


def _thin(sizes: tuple[int, ...], depth: Depth) -> bool:
    """Whether a neighbour has fewer cells than ``depth``: Dask would take only those."""
    before, after = depth
    return any(size < before for size in sizes[:-1]) or any(size < after for size in sizes[1:])


def _bounded(
    graph: ArrayGraph, name: str, source: ArrayNode, output: ArrayNode, depth: tuple[Depth, ...]
) -> OverlapPiece | None:
    """Return the piece with the boundary, if all of it is as Dask builds it."""
    trimmed = only_reader(graph, name)
    last = None if trimmed is None else graph.node(trimmed)
    if trimmed is None or last is None:
        return None
    axes = _trimmed_axes(graph, output, last)
    boundary: list[Boundary] = [None] * source.ndim
    passed = [trimmed, name]
    for axis in reversed(axes):
        before, after = depth[axis]
        edge = edge_of(graph, source, axis, before) if before == after > 0 else None
        if edge is None:
            return None
        boundary[axis], source, layers = edge
        passed += layers
    if not axes or last.chunks != extended(source.chunks, depth, boundary):
        return None
    inner = (name, *(layer for layer in _replaceable(graph, passed) if layer != name))
    # Dask drops the tasks of "concatenate", which only rename blocks
    tasks = [len(graph.layers[each]) for each in passed[2:] if not each.startswith("concatenate-")]
    return OverlapPiece(last, source, depth, tuple(boundary), sum(tasks), inner=inner)


def _replaceable(graph: ArrayGraph, passed: Iterable[str]) -> Iterable[str]:
    """Leave out the layers that others read, which must stay; the gang does not wait for them."""
    inner: dict[str, None] = {}
    for name in passed:  # from the last to the first
        if not inner or (name not in graph.requested and graph.dependents[name] <= inner.keys()):
            inner[name] = None
    return inner


def _trimmed_axes(graph: ArrayGraph, before: ArrayNode, after: ArrayNode) -> tuple[int, ...]:
    """Return the axes along which a layer drops the first and last chunk and does nothing else."""
    if after.ndim != before.ndim:
        return ()
    dropped = [old - new == 2 for old, new in zip(before.grid, after.grid, strict=True)]
    trims = all(
        target_of(graph, after, index) == (before.name, *map(add, index, dropped))
        for index in after.indices
    )
    return tuple(axis for axis, drops in enumerate(dropped) if drops and trims)
