"""The piece of a compensated or reproducible sum, or mean, along some axes, and its rule.

``dask_dgpu.array.reductions`` builds them like Dask's own reductions, with known functions::

    sum_block (blockwise) -> add_partials ("-partial-") ... -> finish ("-aggregate-")

This graph is best if partial sums are small, or if Dask can fuse the first layer with
elementwise layers before it: transfers are small, and whole blocks need not exist. A gang is for
large partial sums of blocks that exist anyway.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from dask.blockwise import Blockwise

from graph_opt.dask_graph.parse import (
    CARRIED,
    ArrayGraph,
    Rule,
    array_operands,
    block_function,
    function_name,
    only_reader,
    unsupported,
)
from graph_opt.model.cost import Machine
from graph_opt.model.layout import ArrayNode, Declined, Index, counted
from graph_opt.model.piece import SeparablePiece

T = TypeVar("T")

PARTIAL_BYTES = 16
"""Bytes of a compensated partial sum; an exact one has about twice as many."""

MODULE = "dask_dgpu.array.reductions.call"
WIDE = 1 << 20
"""Bytes of partial sums per block from which a gang may pay."""


@dataclass(frozen=True)
class SumPiece(SeparablePiece):
    """The sums of ``source`` along ``axes``.

    ``kind`` is ``"sum"`` or ``"mean"``, and ``method`` is ``"compensated"`` or
    ``"reproducible"``.
    """

    axes: tuple[int, ...]
    keepdims: bool
    method: str
    kind: str

    operation = "sum"

    @property
    def task(self) -> tuple[tuple[int, ...], bool, str, str]:
        """Axes, keepdims, method and kind."""
        return self.axes, self.keepdims, self.method, self.kind

    @property
    def summary(self) -> str:
        """Shape, dtype, method, and the number of blocks before and after."""
        axes = f"axis {self.axes[0]}" if len(self.axes) == 1 else f"axes {self.axes}"
        blocks = f"from {self.source.blocks} to {counted(len(self.computed), 'block')}"
        return f"{self.source.shape} {self.source.dtype} along {axes}, {self.method}, {blocks}"

    @property
    def facts(self) -> dict[str, Any]:
        """Name, shape, dtype, axes and method."""
        return {**super().facts, "axes": self.axes, "method": self.method}

    @cached_property
    def staged(self) -> tuple[tuple[Index, ...], ...]:
        """The blocks of the source in the sums of a wanted block."""
        some = set(self.computed)
        return (tuple(index for index in self.source.indices if self._reduced(index, 0) in some),)

    def _reduced(self, values: Sequence[T], one: T) -> tuple[T, ...]:
        """Return values for the axes of the output, with ``one`` for axes that are summed."""
        return tuple(
            one if axis in self.axes else value
            for axis, value in enumerate(values)
            if self.keepdims or axis not in self.axes
        )

    def fault(self) -> str | None:
        """Return which axes, chunks or blocks do not match, ``None`` if all do."""
        if any(not 0 <= axis < self.source.ndim for axis in self.axes):
            return f"expected some of {self.source.ndim} axes, got {self.axes}"
        chunks = self._reduced(self.source.chunks, (1,))
        if chunks != self.output.chunks:
            return f"expected chunks {chunks}, got {self.output.chunks}"
        return super().fault()

    def dask_cost(self, ranks: int, machine: Machine) -> tuple[int, float]:
        """Return tasks and seconds of plain Dask, which adds all partial sums in few tasks."""
        (read,) = self.staged
        share = len(read) / max(1, self.source.blocks)
        tasks = len(read) + len(self.computed)
        sums = [math.prod(self.output.block_shape(index)) for index in self.computed]
        each = len(read) / max(1, len(self.computed))
        moved = each * PARTIAL_BYTES * sum(sums) * (ranks - 1) / ranks
        adders = min(ranks, max(1, len(self.computed)))
        seconds = share * self.source.nbytes / (machine.memory_bandwidth * ranks)
        seconds += moved / (machine.dask_rate * adders)
        return tasks, seconds + tasks * machine.task_seconds


def match(graph: ArrayGraph, name: str) -> SumPiece | Declined | None:
    """Match the sum whose blockwise layer is ``name``; ``None`` is no sum, or one for Dask."""
    function: Any = block_function(graph, name)
    operands = array_operands(graph, name)
    source = graph.node(operands[0][0]) if len(operands) == 1 else None
    inner = [name]
    while (reader := only_reader(graph, inner[-1])) is not None:
        inner.append(reader)
        if function_name(_function(graph, reader)) != f"{MODULE}.add_partials":
            break
    last = _function(graph, inner[-1])
    output = graph.node(inner[-1])
    if source is None or output is None or function_name(last) != f"{MODULE}.finish":
        return None
    wide = output.size and PARTIAL_BYTES * math.prod(map(max, output.chunks)) >= WIDE
    if unsupported((source,), output, CARRIED) or not wide or _fused(graph, source):
        return None
    options = last.keywords
    axes, method = tuple(options["axis"]), function.keywords["method"]
    task = axes, options["keepdims"], method, options["kind"]
    piece = SumPiece(output, source, *task, inner=tuple(inner))
    fault = piece.fault()
    return piece if fault is None else Declined(output.name, fault)


RULE = Rule(match, functions=(f"{MODULE}.sum_block",))


def _fused(graph: ArrayGraph, source: ArrayNode) -> bool:
    """Whether the blocks of an array exist only within the tasks that sum them."""
    blockwise = isinstance(graph.layers.get(source.name), Blockwise)
    return blockwise and only_reader(graph, source.name) is not None


def _function(graph: ArrayGraph, name: str) -> Any:
    """Return the function of the tasks of a materialized layer."""
    layer = graph.layers[name]
    task = next((layer[key] for key in layer), None)
    return task[0] if isinstance(task, tuple) else getattr(task, "func", None)
