"""The piece of a convolution of images."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from graph_opt.model.cost import TALL, Machine, dask_rechunk_seconds
from graph_opt.model.layout import ArrayNode, Cuts, cuts_of, overlaps
from graph_opt.model.piece import SeparablePiece
from graph_opt.model.window import Convolution, Window


@dataclass(frozen=True)
class Conv2dPiece(SeparablePiece):
    """The convolution of ``source`` with ``weight``, and ``bias`` added if there is one."""

    weight: ArrayNode
    bias: ArrayNode | None
    convolution: Convolution

    operation = "conv2d"

    @property
    def task(self) -> Convolution:
        return self.convolution

    @property
    def inputs(self) -> tuple[ArrayNode, ...]:
        inputs = self.source, self.weight
        return inputs if self.bias is None else (*inputs, self.bias)

    @property
    def summary(self) -> str:
        shape, kernel, dtype = self.source.shape, self.weight.shape, self.source.dtype
        return f"{shape} in {self.source.blocks} blocks with kernels {kernel}, {dtype}"

    @property
    def facts(self) -> dict[str, Any]:
        given = {"shape": self.source.shape, "chunks": self.source.chunks}
        return {**super().facts, **given, "kernel": self.weight.shape}

    @cached_property
    def cuts(self) -> tuple[Cuts, ...]:
        """The cuts of the source."""
        return tuple(cuts_of(sizes) for sizes in self.source.chunks)

    @cached_property
    def windows(self) -> tuple[tuple[Window, ...], ...]:
        """For each axis, the window of each chunk of the output in the source."""
        cuts = tuple(cuts_of(sizes) for sizes in self.output.chunks)
        return self.convolution.windows(cuts, self.source.shape)

    @property
    def under(self) -> list[list[list[int]]]:
        """The chunks under each window."""
        return [
            [
                [chunk for chunk, *_ in overlaps(cuts, window.start, window.stop)]
                for window in windows
            ]
            for cuts, windows in zip(self.cuts, self.windows, strict=True)
        ]

    def dask_cost(self, ranks: int, machine: Machine) -> tuple[int, float]:
        """Return tasks and seconds of plain Dask: parts of blocks, then a task for each block.

        These read the whole weights. Parts of other blocks than the largest one are sent.
        """
        under = [
            [[hi - lo for _, lo, hi in overlaps(cuts, w.start, w.stop)] for w in windows]
            for cuts, windows in zip(self.cuts, self.windows, strict=True)
        ]

        def total(measure: Any) -> int:
            return math.prod(sum(map(measure, axis)) for axis in under)

        itemsize, share = self.output.itemsize, len(self.computed) / max(1, self.output.blocks)
        read, kept = (
            share * itemsize * total(measure) for measure in (sum, partial(max, default=0))
        )
        tasks = round(share * (total(len) + self.output.blocks)) + 1
        moved = read - kept + self.weight.nbytes * (ranks - 1)
        seconds = dask_rechunk_seconds(tasks, moved, read, ranks, machine)
        busy = min(ranks, max(1, len(self.computed)))
        work = share * self.output.size * self.convolution.operations(self.source.shape[1])
        seconds += work / (machine.product_rate((TALL, TALL, TALL), self.output.dtype) * busy)
        return tasks, seconds + machine.round_trip_seconds
