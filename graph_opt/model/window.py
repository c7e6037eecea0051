"""Windows: the part of an array under each block of a convolution, axis by axis.

::

    array, padding 1           . |0 1 2 3 4 5 6| .
    windows of 3, stride 2     [0 .   1]
                                   [1   2   3]
                                         ...
    results                      0   1   2   3
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from graph_opt.model.layout import Cuts, Span


@dataclass(frozen=True)
class Window:
    """The positions of an axis that a span of the result reads.

    These are ``[start, stop)`` of the array, with zeros ``before`` and ``after``.
    """

    start: int
    stop: int
    before: int = 0
    after: int = 0

    @property
    def length(self) -> int:
        """Number of positions, with the zeros."""
        return self.before + self.stop - self.start + self.after


@dataclass(frozen=True)
class Sliding:
    """A window that slides along one axis: its taps, their dilation, its stride, the padding."""

    taps: int
    stride: int = 1
    padding: Span = (0, 0)
    dilation: int = 1

    @property
    def reach(self) -> int:
        """Positions from the first tap to the last, both included."""
        return self.dilation * (self.taps - 1) + 1

    def results(self, length: int) -> int:
        """Return the number of windows on an axis; 0 or less if not even one fits."""
        return (length + sum(self.padding) - self.reach) // self.stride + 1

    def window(self, start: int, stop: int, length: int) -> Window:
        """Return what the results ``[start, stop)`` read of an axis."""
        if start >= stop:
            return Window(0, 0)
        first = start * self.stride - self.padding[0]
        last = (stop - 1) * self.stride - self.padding[0] + self.reach
        lo, hi = (min(max(at, 0), length) for at in (first, last))
        before = min(max(-first, 0), last - first)
        return Window(lo, hi, before, last - first - before - (hi - lo))

    def windows(self, cuts: Cuts, length: int) -> tuple[Window, ...]:
        """Return the window of each chunk of the results."""
        return tuple(self.window(lo, hi, length) for lo, hi in pairwise(cuts))

    def result_cuts(self, cuts: Cuts) -> Cuts:
        """Return the cuts of the results, each in the chunk with the middle of its window."""
        count = self.results(cuts[-1])
        inner = (min(max(self._first_from(at), 0), count) for at in cuts[1:-1])
        return (*sorted({0, count, *inner}),)

    def source_cuts(self, cuts: Cuts, length: int) -> Cuts:
        """Return cuts of the axis near the middles of the windows at some cuts of the results."""
        inner = (
            at * self.stride - self.padding[0] + (self.reach - self.stride + 1) // 2
            for at in cuts[1:-1]
        )
        return (0, *(min(max(at, 0), length) for at in inner), length)

    def _first_from(self, position: int) -> int:
        """Return the first result whose window has its middle at a position or after it."""
        doubled = 2 * (position + self.padding[0]) - (self.reach - 1)
        return -(-doubled // (2 * self.stride))


@dataclass(frozen=True)
class Convolution:
    """The parameters of a convolution of images, without its arrays.

    ``axes`` are the windows along rows and columns. Channels are convolved in ``groups``: each
    reads its share of the input's channels and computes its share of the output's.
    """

    axes: tuple[Sliding, Sliding]
    groups: int = 1

    def result_cuts(self, cuts: tuple[Cuts, ...], channels: int) -> tuple[Cuts, ...]:
        """Return the cuts of the result: all of its channels in one chunk."""
        spatial = (axis.result_cuts(cuts[k]) for k, axis in enumerate(self.axes, 2))
        return (cuts[0], (0, channels), *spatial)

    def source_cuts(self, cuts: tuple[Cuts, ...], shape: tuple[int, ...]) -> tuple[Cuts, ...]:
        """Return cuts of rows and columns of the images near the middles of windows."""
        return tuple(axis.source_cuts(cuts[k], shape[k]) for k, axis in enumerate(self.axes, 2))

    def windows(
        self, cuts: tuple[Cuts, ...], shape: tuple[int, ...]
    ) -> tuple[tuple[Window, ...], ...]:
        """Return, for each axis, the window of each chunk of the result in an array."""
        images = tuple(Window(lo, hi) for lo, hi in pairwise(cuts[0]))
        channels = (Window(0, shape[1]),)
        spatial = (axis.windows(cuts[k], shape[k]) for k, axis in enumerate(self.axes, 2))
        return (images, channels, *spatial)

    def padded(self, rows: Window, columns: Window) -> Convolution:
        """Return the convolution of a part: zeros are added where its windows have them."""
        first, second = (
            replace(axis, padding=(window.before, window.after))
            for axis, window in zip(self.axes, (rows, columns), strict=True)
        )
        return replace(self, axes=(first, second))

    def operations(self, channels: int) -> int:
        """Return the operations for one element of the result, from this number of channels."""
        return 2 * (channels // self.groups) * self.axes[0].taps * self.axes[1].taps
