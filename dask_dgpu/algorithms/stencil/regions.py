"""The regions of a rank's tiles in the passes between two exchanges of ghost cells.

::

    during the exchange   | early: the inner part of each tile
    after it              | late: the part around it | rest: sweep ..., sweep s

A pass is one sweep, or several that the device computes at once. The region of each sweep is
smaller than the one before by the stencil's radius, down to the tile itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from dask_dgpu.kernels.stencil import Region
from graph_opt.model.layout import Cuts, Index

Regions = list[Region]
"""The region of each sweep of a pass."""


class Passes(NamedTuple):
    """The passes of a rank, the same after every exchange.

    ``early`` are regions of each tile that need no ghost cells from other tiles, ``late`` the
    regions around them, and ``rest`` the passes after the first, or all passes without an exchange.
    """

    early: dict[Index, Regions]
    late: dict[Index, list[Regions]]
    rest: list[dict[Index, Regions]]


def passes_of(tiles: Mapping[Index, Tile], sweeps: int, *, first: int, others: int) -> Passes:
    """Return the passes of a number of sweeps over a rank's tiles.

    ``first`` is the number of sweeps in the pass that hides the exchange, 0 without an exchange;
    ``others`` the maximum for each later pass.
    """

    def late(tile: Tile) -> Iterator[Regions]:
        whole = [tile.region(sweeps - 1 - at) for at in range(first)]
        inner = tile.early(first, sweeps - first)
        for part in _around(whole[-1], inner):
            yield [tile.widened(part, first - 1 - at, each) for at, each in enumerate(whole)]

    rest = [
        {
            index: [tile.region(left - 1) for left in range(most, max(0, most - others), -1)]
            for index, tile in tiles.items()
        }
        for most in range(sweeps - first, 0, -others)
    ]
    if not first:
        return Passes({}, {}, rest)
    early = {
        index: [tile.early(at + 1, sweeps - 1 - at) for at in range(first)]
        for index, tile in tiles.items()
    }
    return Passes(early, {index: list(late(tile)) for index, tile in tiles.items()}, rest)


@dataclass(frozen=True)
class Side:
    """A tile along one axis, in positions of the array.

    ::

            first   start          stop   last
              |rim|...|______________|......|        with ghost cells of neighbours on both
                  low                      high      sides, and a rim beyond the array

    ``low`` and ``high`` are within an array that is not periodic. There is a rim if the tile or its
    ghost cells reach the end of the axis. ``length`` is that of the axis; it ``wraps`` if it is
    periodic. A sweep reads ``reach`` elements around each.
    """

    start: int
    stop: int
    low: int
    high: int
    first: int
    last: int
    length: int
    wraps: bool
    reach: int

    @classmethod
    def of(cls, cuts: Cuts, at: int, sweeps: int, reach: int, wraps: bool) -> Side:
        """Return the tile ``at`` of an axis, with ghost cells for some sweeps."""
        start, stop, length = cuts[at], cuts[at + 1], cuts[-1]
        low, high = start - sweeps * reach, stop + sweeps * reach
        if wraps:
            return cls(start, stop, low, high, low, high, length, wraps, reach)
        first = -reach if low < 0 else low
        last = length + reach if high > length else high
        low, high = max(0, low), min(length, high)
        return cls(start, stop, low, high, first, last, length, wraps, reach)

    def grown(self, sweeps: int) -> slice:
        """Return the tile with ghost cells for some sweeps, in positions of its storage."""
        start, stop = self.start - sweeps * self.reach, self.stop + sweeps * self.reach
        if not self.wraps:
            start, stop = max(0, start), min(self.length, stop)
        return slice(start - self.first, stop - self.first)

    def early(self, done: int, left: int) -> slice:
        """Return the part of ``grown(left)`` that needs no ghost cells in ``done`` sweeps."""
        whole, margin = self.grown(left), done * self.reach
        start = self.start + (margin if self.wraps or self.start else 0) - self.first
        inner = self.stop - (margin if self.wraps or self.stop < self.length else 0) - self.first
        return slice(min(start, whole.stop), max(min(start, whole.stop), inner))


@dataclass(frozen=True)
class Tile:
    """A tile and its ghost cells: a side along each axis."""

    sides: tuple[Side, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of its storage."""
        return tuple(side.last - side.first for side in self.sides)

    @property
    def extended(self) -> Region:
        """The tile and its exchanged ghost cells."""
        return tuple(slice(s.low - s.first, s.high - s.first) for s in self.sides)

    @property
    def rims(self) -> tuple[tuple[int, int], ...]:
        """Widths of the rims beyond the array."""
        return tuple((s.low - s.first, s.last - s.high) for s in self.sides)

    @property
    def inside(self) -> Region:
        """The tile itself, without ghost cells."""
        return self.region(0)

    def region(self, sweeps: int) -> Region:
        """Return the tile with ghost cells for some sweeps."""
        return tuple(side.grown(sweeps) for side in self.sides)

    def early(self, done: int, left: int) -> Region:
        """Return the part of ``region(left)`` that needs no ghost cells; see ``Side``."""
        return tuple(side.early(done, left) for side in self.sides)

    def widened(self, part: Region, sweeps: int, within: Region) -> Region:
        """Return what some sweeps of a part read, within another region."""
        rows = zip(part, (sweeps * side.reach for side in self.sides), within, strict=True)
        return tuple(
            slice(max(along.start - more, whole.start), min(along.stop + more, whole.stop))
            for along, more, whole in rows
        )


def _around(region: Region, inner: Region) -> Iterator[Region]:
    """Yield the parts of a region that are not in ``inner``; some may be empty."""
    for axis, (whole, hole) in enumerate(zip(region, inner, strict=True)):
        for part in (slice(whole.start, hole.start), slice(hole.stop, whole.stop)):
            if part.start < part.stop:
                yield (*inner[:axis], part, *region[axis + 1 :])
