"""The piece of a rechunk, of an array or of its transpose, and its rule.

Its target is the ``redistribute`` algorithm. Dask rechunks by one of two methods, and the first
in one pass or several::

    tasks    rechunk-merge -> rechunk-merge ...    slices and concatenations, one layer per pass
    p2p      (rechunk-merge ->) rechunk-p2p        after a pass that splits large blocks

Consecutive passes, also of several calls, are one piece if no other layer reads the arrays
between them. So are the transposes before and between them::

    x.T.rechunk(...)     transpose -> rechunk-merge
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from dask.blockwise import Blockwise
from dask.highlevelgraph import MaterializedLayer

from graph_opt.dask_graph.internals import Alias, concatenate_shaped
from graph_opt.dask_graph.parse import (
    ArrayGraph,
    Rule,
    array_operands,
    block_function,
    only_reader,
    unsupported,
)
from graph_opt.model.cost import Machine, dask_rechunk_seconds
from graph_opt.model.layout import (
    ArrayNode,
    Chunks,
    Declined,
    Index,
    common_lengths,
    cuts_of,
    spread,
)
from graph_opt.model.piece import SeparablePiece

TASKS = "rechunk-merge-"
P2P = "rechunk-p2p-"
TRANSPOSES = (np.transpose, np.swapaxes)

Axes = tuple[int, ...]


@dataclass(frozen=True)
class Stage:
    """One of Dask's passes of a rechunk, and its number of tasks."""

    before: Chunks
    after: Chunks
    tasks: int

    @property
    def merged(self) -> float:
        """Fraction of the array in blocks that are merged from several."""
        alone = 1.0
        for before, after in zip(self.before, self.after, strict=True):
            lengths = common_lengths(cuts_of(before), cuts_of(after))
            single = (lengths > 0).sum(axis=1) == 1
            alone *= float(lengths[single].sum()) / max(1, sum(after))
        return 1 - alone


@dataclass(frozen=True)
class RechunkPiece(SeparablePiece):
    """A rechunk of ``source``, or of its transpose: ``output = source.transpose(axes)``.

    ``stages`` are Dask's own passes.
    """

    axes: tuple[int, ...]
    stages: tuple[Stage, ...]

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

    @cached_property
    def staged(self) -> tuple[tuple[Index, ...], ...]:
        """The blocks of the source with elements of a wanted block."""
        wanted = np.zeros(self.output.grid)
        for index in self.computed:
            wanted[index] = 1
        common = [
            common_lengths(cuts_of(self.source.chunks[axis]), cuts_of(sizes)) > 0
            for axis, sizes in zip(self.axes, self.output.chunks, strict=True)
        ]
        read = spread(wanted, [matrix.astype(float) for matrix in common])
        read = read.transpose([self.axes.index(axis) for axis in range(len(self.axes))])
        return (tuple(tuple(index) for index in np.argwhere(read).tolist()),)

    def fault(self) -> str | None:
        ndim, output = self.source.ndim, self.output
        if sorted(self.axes) != list(range(ndim)) or output.ndim != ndim:
            return f"expected an order of {ndim} axes, got {self.axes}"
        shape = tuple(self.source.shape[axis] for axis in self.axes)
        if shape != output.shape:
            return f"expected shape {shape}, got {output.shape}"
        if self.source.dtype != output.dtype:
            return f"expected dtype {self.source.dtype}, got {output.dtype}"
        return super().fault()

    def dask_cost(self, ranks: int, machine: Machine) -> tuple[int, float]:
        """Return tasks and seconds of plain Dask for the wanted blocks."""
        share = 1.0
        if self.wanted is not None:
            sizes = (math.prod(self.output.block_shape(index)) for index in self.wanted)
            share = sum(sizes) / max(1, self.output.size)
        tasks = round(share * sum(stage.tasks for stage in self.stages))
        written = share * self.output.nbytes * sum(stage.merged for stage in self.stages)
        return tasks, dask_rechunk_seconds(tasks, written, written, ranks, machine)


def match(graph: ArrayGraph, name: str) -> RechunkPiece | Declined | None:
    """Match the rechunk whose last layer is ``name``; ``None`` is no rechunk, or not its end."""
    if not _is_rechunk(graph, name) or _continues(graph, name):
        return None
    inner = [name]
    while (before := _only_input(graph, inner[0])) is not None and _is_step(graph, before):
        if only_reader(graph, before) is None:
            break
        inner.insert(0, before)
    source, output = graph.node(before) if before else None, graph.node(name)
    if source is None or output is None:
        return Declined(name, "its array is not a Dask array with known facts")
    found = (source, *map(graph.node, inner))
    nodes = [node for node in found if node is not None and node.known]
    if len(nodes) < len(found):
        return Declined(name, "chunk sizes are unknown")
    reason = unsupported((source,), output)
    if reason is not None:
        return Declined(name, reason)
    axes, stages = _passes(graph, inner, nodes)
    piece = RechunkPiece(output, source, axes, stages, inner=tuple(inner))
    # Dask may correct chunk sizes after it has created the layer, whose facts stay as they were
    return piece if piece.fault() is None else Declined(name, "chunk sizes are unknown")


RULE = Rule(match, prefixes=(TASKS, P2P))


def _is_rechunk(graph: ArrayGraph, name: str) -> bool:
    if name.startswith(P2P):  # by name: its class is in distributed, which may be missing
        return type(graph.layers[name]).__name__ == "P2PRechunkLayer"
    if not name.startswith(TASKS):
        return False
    layer = graph.layers[name]
    if not isinstance(layer, MaterializedLayer):
        return False
    task = next(iter(layer.mapping.values()), None)
    return isinstance(task, Alias) or getattr(task, "func", None) is concatenate_shaped


def _is_step(graph: ArrayGraph, name: str) -> bool:
    return _is_rechunk(graph, name) or _permutation(graph, name) is not None


def _only_input(graph: ArrayGraph, name: str) -> str | None:
    inputs = graph.dependencies[name]
    return next(iter(inputs)) if len(inputs) == 1 else None


def _continues(graph: ArrayGraph, name: str) -> bool:
    """Whether another rechunk is the only reader, directly or after transposes."""
    reader = only_reader(graph, name)
    while reader is not None and _permutation(graph, reader) is not None:
        reader = only_reader(graph, reader)
    return reader is not None and _is_rechunk(graph, reader)


def _permutation(graph: ArrayGraph, name: str) -> Axes | None:
    """Return the order of axes of a transpose, ``None`` if the layer is none."""
    function = block_function(graph, name)
    if not any(function is transpose for transpose in TRANSPOSES):
        return None
    layer, operands = graph.layers[name], array_operands(graph, name)
    if not isinstance(layer, Blockwise) or len(operands) != 1 or len(layer.indices) != 1:
        return None
    index = operands[0][1]
    if sorted(index) != sorted(layer.output_indices):
        return None
    axes = tuple(index.index(letter) for letter in layer.output_indices)
    return axes if axes == _declared(layer.task.kwargs, len(axes)) else None


def _declared(options: dict[str, object], ndim: int) -> Axes | None:
    """Return the order of axes in the arguments of the block function."""
    order: list[int] = list(range(ndim))
    first, second = options.get("axis1"), options.get("axis2")
    if isinstance(first, int) and isinstance(second, int):
        order[first], order[second] = order[second], order[first]
        return tuple(order)
    axes = options.get("axes")
    if axes is None:
        return tuple(reversed(order))
    return tuple(axis % ndim for axis in axes) if isinstance(axes, tuple | list) else None


def _passes(
    graph: ArrayGraph, inner: Sequence[str], nodes: Sequence[ArrayNode]
) -> tuple[Axes, tuple[Stage, ...]]:
    """Return the order of axes after all steps, and Dask's own passes."""
    axes: Axes = tuple(range(nodes[0].ndim))
    stages: list[Stage] = []
    for name, (before, after) in zip(inner, pairwise(nodes), strict=True):
        permutation = _permutation(graph, name)
        if permutation is not None:
            axes = tuple(axes[axis] for axis in permutation)
        elif name.startswith(P2P):
            stages.append(Stage(before.chunks, after.chunks, before.blocks + 1 + after.blocks))
        else:
            stages.append(Stage(before.chunks, after.chunks, len(graph.layers[name])))
    return axes, tuple(stages)
