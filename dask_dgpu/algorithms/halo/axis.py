"""The segments of one axis: the parts of chunks in its extended chunks.

::

    chunks           |__0__|__1__|__2__|         depth (1, 2)
    extended chunk 1     |0|__1__|2_2|           inside the array
    extended chunk 2           |1|__2__|b b|     b: periodic  0 1 of the axis
                                                    reflect   its last, the last but one
                                                    mirror    its last but one, but two
                                                    nearest   its last, twice
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from dask_dgpu.algorithms.redistribute.cells import Ints
from graph_opt.model.layout import Cuts, Span

Boundary = str | complex | None
Depth = tuple[int, int]

NAMES = ("none", "periodic", "reflect", "mirror", "nearest")
CONSTANT = -1
"""The source chunk of constants beyond the array."""


class Segment(NamedTuple):
    """A part of an extended chunk.

    It starts at ``at`` in the extended chunk ``target``, and at ``start`` in the chunk ``source``,
    which it reads in steps of ``step``: 1, -1 or 0. ``ghost`` is whether it is not the chunk
    itself.
    """

    target: int
    at: int
    length: int
    source: int
    start: int
    step: int
    ghost: bool


class Axis(NamedTuple):
    """The segments of an axis, as columns, and the lengths of its extended chunks."""

    target: Ints
    at: Ints
    length: Ints
    source: Ints
    start: Ints
    step: Ints
    ghost: Ints
    lengths: tuple[int, ...]

    @classmethod
    def of(cls, cuts: Cuts, depth: Depth, boundary: Boundary) -> Axis:
        """Extend the chunks of an axis."""
        rows: list[Segment] = []
        lengths = []
        for chunk in range(len(cuts) - 1):
            mine = list(_extended(cuts, chunk, depth, boundary))
            lengths.append(sum(segment.length for segment in mine))
            rows += mine
        table = np.array(rows, np.int64).reshape(len(rows), len(Segment._fields))
        target, at, length, source, start, step, ghost = table.T
        return cls(target, at, length, source, start, step, ghost, tuple(lengths))


def _extended(cuts: Cuts, chunk: int, depth: Depth, boundary: Boundary) -> Iterator[Segment]:
    """Yield the segments of an extended chunk, in order."""
    lo, hi, length = cuts[chunk], cuts[chunk + 1], cuts[-1]
    first, last = lo - depth[0], hi + depth[1]
    runs = [
        *_outside((first, min(0, last)), length, boundary),
        *_inside((max(0, first), lo)),
        *_inside((lo, hi)),
        *_inside((hi, min(length, last))),
        *_outside((max(length, first), last), length, boundary),
    ]
    mine = lo - (first if extends_beyond(boundary) else max(0, first))
    at = 0
    for start, size, step in runs:
        for source, begin, part in _cut(cuts, start, size, step):
            yield Segment(chunk, at, part, source, begin, step, at != mine)
            at += part


def extends_beyond(boundary: Boundary) -> bool:
    """Whether there are cells beyond the array."""
    return boundary is not None and boundary != "none"


def _inside(span: Span) -> Iterator[tuple[int, int, int]]:
    start, stop = span
    if start < stop:
        yield start, stop - start, 1


def _outside(span: Span, length: int, boundary: Boundary) -> Iterator[tuple[int, int, int]]:
    """Yield runs of positions that replace a span beyond the axis.

    Each is the first position, the number of positions, and the step to the next.
    """
    start, stop = span
    if start >= stop or not extends_beyond(boundary):
        return
    if not isinstance(boundary, str):
        yield CONSTANT, stop - start, 0
        return
    period = length - 1 if boundary == "mirror" else length
    if boundary == "nearest" or period == 0:
        yield 0 if start < 0 else length - 1, stop - start, 0
        return
    while start < stop:
        turn, along = divmod(start, period)
        size = min(stop, (turn + 1) * period) - start
        if boundary == "periodic" or turn % 2 == 0:
            yield along, size, 1
        else:
            yield length - 1 - along, size, -1
        start += size


def _cut(cuts: Cuts, start: int, size: int, step: int) -> Iterator[tuple[int, int, int]]:
    """Cut a run at chunks: chunk, first position in it, number of positions."""
    if start == CONSTANT:
        yield CONSTANT, 0, size
        return
    while size:
        chunk = bisect_right(cuts, start) - 1
        if step == 0:
            part = size
        else:
            part = min(size, cuts[chunk + 1] - start if step > 0 else start - cuts[chunk] + 1)
        yield chunk, start - cuts[chunk], part
        start, size = start + step * part, size - part
