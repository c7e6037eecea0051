"""Results of batches, combined where a contraction is cut, and written to a host array."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Executor
from math import prod
from typing import Any

import numpy as np

from dask_dgpu.batches.blocks import Region, Room
from dask_dgpu.batches.copying import copy
from dask_dgpu.batches.notation import Notation, Span, Tile
from dask_dgpu.batches.rules import Shape
from graph_opt.model.layout import is_inexact

Blocks = Iterable[tuple[Region, Any]]
"""Places and blocks; a block is None if it is already in its place."""
Spans = tuple[Span, ...]

ROWS = 1 << 16
"""Bytes that are added at a time."""


class Sink:
    """Writes the result of a call, each part once all of its batches are there.

    Threads of ``copying`` share the copies of large blocks. Nothing but this call reads or keeps an
    ``out`` that is ``new``, so parts of it may be written that are not complete.
    """

    def __init__(
        self,
        notation: Notation,
        shape: Shape,
        dtype: np.dtype[Any],
        out: Any,
        copying: Executor | None,
        *,
        new: bool,
    ) -> None:
        self.notation = notation
        self.shape = shape
        self.dtype = dtype
        self.out = out
        self._copying = copying
        self._new = new and isinstance(out, np.ndarray)
        self.written: set[Spans] = set()
        self.is_writing = False
        self._sum: Sum | None = None
        self._spans: Spans = ()
        self._elements = prod(notation.sizes[label] for label in notation.contracted)

    def room(self, tile: Tile) -> Room | None:
        """Return the memory for each block of a batch, if it may be written at once."""
        if not (self._new and self._is_whole(tile)):
            return None
        spans = self.notation.write_spans(self.shape, tile)
        return lambda region: self.out[(*_place(spans, region), ...)]  # a view, also without axes

    def add(self, tile: Tile, blocks: Blocks) -> None:
        """Take the result of a batch."""
        spans = self.notation.write_spans(self.shape, tile)
        if self._is_whole(tile):
            self._write(spans, blocks)
            return
        if self._sum is None or spans != self._spans:
            self.finish()
            self._spans = spans
            shape = tuple(hi - lo for lo, hi in spans)
            self._sum = Sum(shape, self.dtype, self.notation.combine)
        terms = (tile[label] for label in self.notation.contracted)
        counted = prod(hi - lo for lo, hi in terms)
        weight = counted / max(1, self._elements)
        for region, block in blocks:
            self._sum.add(region, block, weight)
        self._sum.has_values = True

    def finish(self) -> None:
        """Write the sum that is open."""
        if self._sum is not None:
            everything = tuple(slice(0, hi - lo) for lo, hi in self._spans)
            self._write(self._spans, [(everything, self._sum.value())])
            self._sum = None

    def drop(self) -> None:
        """Forget the sum that is open."""
        self._sum = None

    def _is_whole(self, tile: Tile) -> bool:
        """Whether a batch has all terms of its sums."""
        sizes = self.notation.sizes
        return all(tile[label] == (0, sizes[label]) for label in self.notation.contracted)

    def _write(self, spans: Spans, blocks: Blocks) -> None:
        self.is_writing = True
        for region, block in blocks:
            if block is not None:
                self._copy(_place(spans, region), block)
        self.written.add(spans)
        self.is_writing = False

    def _copy(self, place: Region, block: Any) -> None:
        arrays = all(isinstance(each, np.ndarray) and each.ndim for each in (self.out, block))
        if self._copying is not None and arrays and self.out.dtype == block.dtype:
            copy(self._copying, self.out[place], block)
        else:
            self.out[place] = block


def _place(spans: Spans, region: Region) -> Region:
    """Return where a block of a part of the result is in all of it."""
    return tuple(
        slice(lo + part.start, lo + part.stop) for (lo, _), part in zip(spans, region, strict=True)
    )


class Sum:
    """Partial results of a reduction, combined.

    Sums of floating-point numbers keep the rounding errors of additions, and half precision is
    added in single. Once all blocks of a partial result are added, it ``has_values``: the next one
    may have other blocks.
    """

    def __init__(self, shape: Shape, dtype: np.dtype[Any], combine: str) -> None:
        self.dtype = dtype
        self.combine = combine
        wide = np.dtype("float32") if dtype.itemsize == 2 and is_inexact(dtype) else dtype
        self.total = np.zeros(shape, wide)
        self.errors = np.zeros(shape, wide) if is_inexact(dtype) else None
        self.has_values = False

    def add(self, region: Region, block: Any, weight: float) -> None:
        """Add one block of a partial result, which has ``weight`` in a mean.

        It goes row by row: temporaries of whole blocks would need as much memory again.
        """
        place: Any = (*region, ...)  # a view, also of an array without axes
        total, values = np.atleast_1d(self.total[place]), np.atleast_1d(np.asarray(block))
        errors = None if self.errors is None else np.atleast_1d(self.errors[place])
        rows = max(1, ROWS * len(total) // max(1, total.nbytes))
        for at in range(0, len(total), rows):
            part = slice(at, at + rows)
            if self.combine in ("max", "min"):
                choose = np.maximum if self.combine == "max" else np.minimum
                new = values[part]
                total[part] = choose(total[part], new) if self.has_values else new
            else:
                scale = weight if self.combine == "mean" else None
                _add(total[part], None if errors is None else errors[part], values[part], scale)

    def value(self) -> Any:
        """Return the result, once."""
        if self.errors is not None and self.combine not in ("max", "min"):
            with np.errstate(invalid="ignore", over="ignore"):
                np.add(self.total, self.errors, out=self.errors)
            np.copyto(self.total, self.errors, where=np.isfinite(self.errors))
        return self.total.astype(self.dtype, copy=False)


def _add(total: Any, errors: Any, values: Any, scale: float | None) -> None:
    """Add values to a total in place, and what rounding loses to ``errors`` (Knuth's two-sum)."""
    values = values.astype(total.dtype, copy=False)
    if scale is not None:
        values = values * total.dtype.type(scale)
    if errors is None:
        np.add(total, values, out=total)
        return
    with np.errstate(invalid="ignore", over="ignore"):
        added = total + values
        other = added - total
        errors += (total - (added - other)) + (values - other)
        total[...] = added
