"""Results of batches, combined where a contraction is cut, and written to a host array."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np

from dask_dgpu.batches.notation import Notation, Span, Tile
from dask_dgpu.batches.rules import Shape
from dask_dgpu.batches.sites import Region
from graph_opt.model.layout import is_inexact

Blocks = Iterable[tuple[Region, Any]]
Spans = tuple[Span, ...]


class Sink:
    """Writes the result of a call, each part once all of its batches are there."""

    def __init__(self, notation: Notation, shape: Shape, dtype: np.dtype[Any], out: Any) -> None:
        self.notation = notation
        self.shape = shape
        self.dtype = dtype
        self.out = out
        self.written = 0
        self._sum: Sum | None = None
        self._spans: Spans = ()
        self._elements = prod(notation.sizes[label] for label in notation.contracted)

    def add(self, tile: Tile, blocks: Blocks) -> None:
        """Take the result of a batch."""
        spans = self.notation.write_spans(self.shape, tile)
        contracted = self.notation.contracted
        if all(tile[label] == (0, self.notation.sizes[label]) for label in contracted):
            self._write(spans, blocks)
            return
        if self._sum is None or spans != self._spans:
            self.finish()
            self._spans = spans
            shape = tuple(hi - lo for lo, hi in spans)
            self._sum = Sum(shape, self.dtype, self.notation.combine)
        weight = prod(hi - lo for lo, hi in map(tile.get, contracted)) / max(1, self._elements)
        for region, block in blocks:
            self._sum.add(region, block, weight)

    def finish(self) -> None:
        """Write the sum that is open."""
        if self._sum is not None:
            everything = tuple(slice(0, hi - lo) for lo, hi in self._spans)
            self._write(self._spans, [(everything, self._sum.value())])
            self._sum = None

    def _write(self, spans: Spans, blocks: Blocks) -> None:
        for region, block in blocks:
            place = tuple(
                slice(lo + part.start, lo + part.stop)
                for (lo, _), part in zip(spans, region, strict=True)
            )
            self.out[place] = block
        self.written += 1


class Sum:
    """Partial results of a reduction, combined.

    Sums of floating-point numbers keep the rounding errors of additions, and half precision is
    added in single.
    """

    def __init__(self, shape: Shape, dtype: np.dtype[Any], combine: str) -> None:
        self.dtype = dtype
        self.combine = combine
        wide = np.dtype("float32") if dtype.itemsize == 2 and is_inexact(dtype) else dtype
        self.total = np.zeros(shape, wide)
        self.errors = np.zeros(shape, wide) if is_inexact(dtype) else None
        self._begun: set[Any] = set()

    def add(self, region: Region, block: Any, weight: float) -> None:
        """Add one block of a partial result, which has ``weight`` in a mean."""
        total = self.total[region]
        values = np.asarray(block, total.dtype)
        if self.combine in ("max", "min"):
            key = tuple((part.start, part.stop) for part in region)
            first = key not in self._begun
            self._begun.add(key)
            choose = np.maximum if self.combine == "max" else np.minimum
            self.total[region] = values if first else choose(total, values)
            return
        if self.combine == "mean":
            values = values * total.dtype.type(weight)
        if self.errors is None:
            self.total[region] = total | values if total.dtype == bool else total + values
            return
        with np.errstate(invalid="ignore", over="ignore"):
            added = total + values
            other = added - total
            self.errors[region] += (total - (added - other)) + (values - other)
            self.total[region] = added

    def value(self) -> Any:
        """Return the result."""
        if self.errors is None or self.combine in ("max", "min"):
            return self.total.astype(self.dtype, copy=False)
        with np.errstate(invalid="ignore", over="ignore"):
            corrected = self.total + self.errors
        result = np.where(np.isfinite(corrected), corrected, self.total)
        return result.astype(self.dtype, copy=False)
