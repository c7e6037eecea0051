"""Calls in index notation: which axes of operands and result are cut together, and how often."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, product
from math import ceil, prod
from typing import Literal

from graph_opt.model.layout import even_spans

Span = tuple[int, int]
Lengths = Mapping[int, int]
"""The longest part of each label that is cut, or its whole length."""
Tile = Mapping[int, Span]
Combine = Literal["add", "mean", "max", "min"]
Measure = Callable[[Lengths], float]

STEP = 2
"""Ratio of the lengths that are tried for all labels of a combination but the last."""
MOST_CUT = 3
"""Most labels to choose lengths for at a time."""

LEAST_TRAFFIC = 512 << 20
"""Bytes of a batch of a call that would fit: their transfer takes longer than a batch costs."""
MOST_OVERLAPPED = 8
"""Most batches of a call that would fit."""
READ_AGAIN = 1.02
"""Most bytes transferred for these batches, over those for one."""


@dataclass(frozen=True)
class Halo:
    """What parts of a result read of an operand, if that is more than the same part.

    The part ``[lo, hi)`` reads ``[(lo - before) * step, hi * step + after)`` within the axis, or of
    its other end too if ``periodic``. The operation on this gives the results from ``lo - before``
    on, or from 0 at the axis' begin.
    """

    before: int
    after: int
    step: int = 1
    periodic: bool = False

    @property
    def overlap(self) -> int:
        """Elements that two neighbouring parts read both; less than 0 if they skip some."""
        return self.before * self.step + self.after

    def longest(self, part: int, size: int) -> int:
        """Return the most elements that a part of this length reads of an axis."""
        read = part * self.step + self.overlap
        return read if self.periodic else min(read, size)

    def span(self, part: Span, size: int) -> Span:
        """Return what a part reads of an axis."""
        lo, hi = (part[0] - self.before) * self.step, part[1] * self.step + self.after
        return (lo, hi) if self.periodic else (max(lo, 0), min(hi, size))

    def trim(self, part: Span) -> slice:
        """Return where a part is in the result of the operation on what it reads."""
        start = self.before if self.periodic else min(self.before, part[0])
        return slice(start, start + part[1] - part[0])


@dataclass(frozen=True)
class Notation:
    """A call as labels of axes, numbers, as in ``einsum``; ``None`` is an axis that stays whole.

    The operation on parts of the operands gives the part of the result with the same labels.
    Labels that the result lacks are contracted: results of their parts are combined. ``sizes`` are
    the lengths of labels, those in the result if a label has a halo.
    """

    inputs: tuple[tuple[int | None, ...], ...]
    output: tuple[int | None, ...]
    sizes: Mapping[int, int]
    combine: Combine = "add"
    halos: Mapping[int, Halo] = field(default_factory=dict)

    @property
    def labels(self) -> tuple[int, ...]:
        """All labels: those of the result in the order of its axes, then the contracted ones."""
        found = dict.fromkeys(chain(self.output, *self.inputs))
        return tuple(label for label in found if label is not None)

    @property
    def contracted(self) -> tuple[int, ...]:
        """The labels that the result lacks."""
        return tuple(label for label in self.labels if label not in self.output)

    def count(self, label: int, lengths: Lengths) -> int:
        """Return the number of parts of a label."""
        return self._parts((0, self.sizes[label]), lengths[label])

    def order(self, lengths: Lengths) -> tuple[int, ...]:
        """Return the labels that are cut, the outermost loop first.

        Contracted labels are innermost, and the first axes of the result are inside of the later
        ones: operands without them, such as a right factor, stay.
        """
        cut = [label for label in self.labels if self.count(label, lengths) > 1]
        kept = [label for label in cut if label in self.output]
        return (*reversed(kept), *cut[len(kept) :])

    def batches(self, lengths: Lengths) -> int:
        """Return the number of tiles."""
        return prod(self.count(label, lengths) for label in self.order(lengths))

    def tiles(self, lengths: Lengths, within: Tile | None = None) -> Iterator[Tile]:
        """Yield the span of each label for each batch, of everything or of a larger tile.

        All parts of a sum are consecutive.
        """
        order = self.order(lengths)
        whole = {label: (0, size) for label, size in self.sizes.items()} | dict(within or {})
        spans = [even_spans(*whole[at], self._parts(whole[at], lengths[at])) for at in order]
        for found in product(*spans):
            yield whole | dict(zip(order, found, strict=True))

    def _parts(self, span: Span, longest: int) -> int:
        return max(1, ceil((span[1] - span[0]) / max(1, longest)))

    def loads(self, operand: int, lengths: Lengths) -> int:
        """Return how often parts of an operand are read: each time one of its labels moves."""
        order = self.order(lengths)
        at = [place for place, label in enumerate(order) if label in self.inputs[operand]]
        return prod(self.count(label, lengths) for label in order[: at[-1] + 1]) if at else 1

    def moves(self, operand: int, lengths: Lengths) -> bool:
        """Whether each batch reads another part of an operand."""
        return self.loads(operand, lengths) == self.batches(lengths) > 1

    def summed(self, tile: Tile) -> Tile:
        """Return a tile with all parts of its sums."""
        return {**tile, **{label: (0, self.sizes[label]) for label in self.contracted}}

    def part_shape(self, operand: int, shape: Sequence[int], lengths: Lengths) -> tuple[int, ...]:
        """Return the largest shape of a part of an operand."""
        axes = zip(self.inputs[operand], shape, strict=True)
        return tuple(self._longest(label, size, lengths) for label, size in axes)

    def result_part(self, shape: Sequence[int], lengths: Lengths) -> tuple[int, ...]:
        """Return the largest shape of a part of the result."""
        axes = zip(self.output, shape, strict=True)
        return tuple(self._longest(label, size, lengths, halo=False) for label, size in axes)

    def elements(self, operand: int, shape: Sequence[int], lengths: Lengths) -> int:
        """Return the elements of all parts of an operand, with their halos."""
        found = 1
        for label, size in zip(self.inputs[operand], shape, strict=True):
            parts = 1 if label is None else self.count(label, lengths)
            if label is not None and parts > 1 and label in self.halos:
                size += (parts - 1) * max(0, self.halos[label].overlap)
            found *= size
        return found

    def longest(self, label: int, lengths: Lengths) -> int:
        """Return the length of the longest part of a label."""
        return ceil(self.sizes[label] / self.count(label, lengths))

    def _longest(self, label: int | None, size: int, lengths: Lengths, halo: bool = True) -> int:
        """Return the longest part of an axis, with its halo."""
        if label is None or self.count(label, lengths) == 1:
            return size
        longest = self.longest(label, lengths)
        is_wider = halo and label in self.halos
        return self.halos[label].longest(longest, size) if is_wider else longest

    def read_spans(self, operand: int, shape: Sequence[int], tile: Tile) -> tuple[Span, ...]:
        """Return what a tile reads of an operand along each axis.

        Spans of periodic axes may begin below 0 and end beyond the axis.
        """
        found = []
        for label, size in zip(self.inputs[operand], shape, strict=True):
            if label is None or tile[label] == (0, self.sizes[label]):
                found.append((0, size))
            else:
                halo = self.halos.get(label, Halo(0, 0))
                found.append(halo.span(tile[label], size))
        return tuple(found)

    def trims(self, shape: Sequence[int], tile: Tile) -> tuple[slice, ...]:
        """Return the part of a tile's result that is valid: without halos."""
        return tuple(
            self.halos[label].trim(tile[label])
            if label is not None and label in self.halos and tile[label] != (0, size)
            else slice(None)
            for label, size in zip(self.output, shape, strict=True)
        )

    def write_spans(self, shape: Sequence[int], tile: Tile) -> tuple[Span, ...]:
        """Return where the result of a tile belongs."""
        return tuple(
            (0, size) if label is None else tile[label]
            for label, size in zip(self.output, shape, strict=True)
        )


def choose(notation: Notation, memory: Measure, cost: Measure, room: float) -> Lengths | None:
    """Return the lengths that fit and cost least, ``None`` if single elements do not fit.

    ``memory`` returns bytes, ``cost`` any measure. As few labels as possible are cut; of equal
    choices the first label of the result is cut.
    """
    lengths = dict(notation.sizes)
    if memory(lengths) <= room:
        return lengths
    if memory(dict.fromkeys(lengths, 1)) > room:
        return None
    free = [label for label in notation.labels if lengths[label] > 1]
    while True:
        for count in range(1, min(MOST_CUT, len(free)) + 1):
            found = [
                each
                for labels in combinations(free, count)
                for each in _fitting(labels, lengths, memory, room)
            ]
            if found:
                return min(found, key=cost)
        largest = min(free, key=lambda label: memory(lengths | {label: 1}))
        lengths[largest] = 1
        free.remove(largest)
        if memory(lengths) <= room:
            return lengths


def overlapping(notation: Notation, memory: Measure, traffic: Measure, room: float) -> Lengths:
    """Return the lengths for a call that fits, so that large transfers hide behind the work.

    The first label of the result is cut whose parts read nearly nothing twice. ``traffic`` returns
    bytes.
    """
    whole = dict(notation.sizes)
    nbytes = traffic(whole)
    count = min(MOST_OVERLAPPED, int(nbytes // LEAST_TRAFFIC))
    for label in notation.labels if count > 1 else ():
        lengths = whole | {label: -(-whole[label] // count)}
        several = label in notation.output and notation.batches(lengths) > 1
        if several and traffic(lengths) <= READ_AGAIN * nbytes and memory(lengths) <= room:
            return lengths
    return whole


def _fitting(
    labels: Sequence[int], whole: dict[int, int], memory: Measure, room: float
) -> Iterator[Lengths]:
    """Yield lengths that fit, the last label's as long as possible."""
    *others, last = labels
    for tried in product(*(_shorter(whole[label]) for label in others)):
        lengths = whole | dict(zip(others, tried, strict=True))

        def nbytes(length: int, lengths: Lengths = lengths) -> float:
            return memory({**lengths, last: length})

        longest = bisect_right(range(1, whole[last] + 1), room, key=nbytes)
        if longest:
            yield lengths | {last: longest}


def _shorter(length: int) -> Iterator[int]:
    while length > 1:
        length = -(-length // STEP)
        yield length
