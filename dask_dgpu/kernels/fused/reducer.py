"""A reduction of a pass: it receives the tiles and merges them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dask_dgpu.kernels.fused.nodes import reduced
from dask_dgpu.kernels.fused.partial import PARTIAL, Part, State
from dask_dgpu.kernels.fused.planning import Pass
from graph_opt.model.expression import Reduce

Array = Any
Index = tuple[slice, ...]


class Reducer:
    """A reduction in a pass.

    Parameters
    ----------
    node : Reduce
        The reduction.
    plan : Pass
        The pass.
    step : int
        The step of its argument.
    """

    def __init__(self, node: Reduce, plan: Pass, step: int) -> None:
        self.node = node
        self.step = step
        self._domain = plan.domain
        self._kept = [axis for axis in range(len(plan.domain)) if axis not in node.axes]
        self._parts = math.prod(
            math.ceil(plan.domain[axis] / length)
            for axis, length in plan.tile.items()
            if axis in node.axes
        )
        self._waiting: dict[tuple[int, ...], list[tuple[int, State]]] = {}
        self._result: Array | None = None

    def add(self, value: Array, index: Index, sums: dict[Any, Array]) -> None:
        """Add a tile; parts of a region are merged in pairs of about equal size.

        ``sums`` are those of the tile that are known, and are added to.
        """
        if self._parts == 1:
            whole = Reduce(self.node.function, 0, self.node.axes, True, self.node.options)
            self._write(reduced(whole, value), index)
            return
        reduction = PARTIAL[self.node.function]
        starts = tuple(part.start for part in index)
        state = reduction.begin(self.node, Part(value, starts, self._domain, sums))
        region = tuple(starts[axis] for axis in self._kept)
        waiting = self._waiting.setdefault(region, [])
        weight = 1
        total = 1 + sum(number for number, _ in waiting)
        while waiting and (waiting[-1][0] <= weight or total == self._parts):
            number, earlier = waiting.pop()
            state = reduction.merge(earlier, state)
            weight += number
        waiting.append((weight, state))
        if weight == self._parts:
            del self._waiting[region]
            self._write(reduction.finish(self.node, state), index)

    @property
    def value(self) -> Array:
        """The complete reduction."""
        result = self._result
        if result is None:
            raise RuntimeError("expected all tiles to be added first")
        return result if self.node.keepdims else result.squeeze(self.node.axes)[()]

    def _write(self, value: Array, index: Index) -> None:
        shape = tuple(
            1 if axis in self.node.axes else length for axis, length in enumerate(self._domain)
        )
        if value.shape == shape:
            self._result = value
            return
        if self._result is None:
            self._result = np.empty(shape, value.dtype)
        whole = (slice(None) if axis in self.node.axes else part for axis, part in enumerate(index))
        self._result[tuple(whole)] = value
