"""The piece of a compensated or reproducible sum, or mean, along some axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from graph_opt.model.cost import Machine
from graph_opt.model.layout import Index, counted
from graph_opt.model.piece import SeparablePiece

T = TypeVar("T")

MODULE = "dask_dgpu.kernels.sums.partial"
"""The module with the functions that Dask's tasks call for it."""

PARTIAL_BYTES = 16
"""Bytes of a compensated partial sum; an exact one has about twice as many."""


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
