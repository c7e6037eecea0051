"""Calls in index notation: which axes of operands and result are cut together, and how often."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, product
from math import ceil, prod
from typing import Literal

from graph_opt.model.layout import even_spans

Axes = tuple[int | None, ...]
"""Labels of the axes of an array."""
Span = tuple[int, int]
Lengths = Mapping[int, int]
"""The longest part of each label that is cut, or its whole length."""
Tile = Mapping[int, Span]
Combine = Literal["add", "mean", "max", "min"]
Measure = Callable[[Lengths], float]

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


WITHIN = Halo(0, 0)


@dataclass(frozen=True)
class Notation:
    """A call as labels of axes, numbers, as in ``einsum``; ``None`` is an axis that stays whole.

    The operation on parts of the operands gives the part of the result with the same labels.
    Labels that the result lacks are contracted: results of their parts are combined. ``sizes`` are
    the lengths of labels, those in the result if a label has a halo.
    """

    inputs: tuple[Axes, ...]
    output: Axes
    sizes: Mapping[int, int]
    combine: Combine = "add"
    halos: Mapping[int, Halo] = field(default_factory=dict)

    @property
    def labels(self) -> tuple[int, ...]:
        """All labels: those of the result in the order of its axes, then the contracted ones."""
        every = dict.fromkeys(chain(self.output, *self.inputs))
        return tuple(label for label in every if label is not None)

    @property
    def smallest(self) -> Lengths:
        """Parts of a single element."""
        return dict.fromkeys(self.sizes, 1)

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
        for tile in product(*spans):
            yield whole | dict(zip(order, tile, strict=True))

    def _parts(self, span: Span, longest: int) -> int:
        return max(1, ceil((span[1] - span[0]) / max(1, longest)))

    def moves(self, operand: int, lengths: Lengths) -> bool:
        """Whether each batch reads another part of an operand."""
        order = self.order(lengths)
        return bool(order) and order[-1] in self.inputs[operand]

    def summed(self, tile: Tile) -> Tile:
        """Return a tile with all parts of its sums."""
        return {**tile, **{label: (0, self.sizes[label]) for label in self.contracted}}

    def ends_sums(self, tile: Tile) -> bool:
        """Whether a tile has the last terms of its sums."""
        return all(tile[label][1] == self.sizes[label] for label in self.contracted)

    def weight(self, tile: Tile) -> float:
        """Return which share of all terms of its sums a tile has."""
        spans = ((label, tile[label]) for label in self.contracted)
        return prod((hi - lo) / self.sizes[label] for label, (lo, hi) in spans)

    def part_shape(
        self, axes: Axes, shape: Sequence[int], lengths: Lengths, *, halo: bool = True
    ) -> tuple[int, ...]:
        """Return the largest shape of a part of an array with these labels."""
        lengths_of_part = []
        for label, size in zip(axes, shape, strict=True):
            if label is not None and self.count(label, lengths) > 1:
                longest = self.longest(label, lengths)
                reads = self.halos.get(label, WITHIN) if halo else WITHIN
                size = reads.longest(longest, size)
            lengths_of_part.append(size)
        return tuple(lengths_of_part)

    def reads(self, operand: int, shape: Sequence[int], lengths: Lengths) -> int:
        """Return the elements that all batches read of an operand.

        They are those of its parts with their halos, again for each step of a loop around its own.
        """
        count, order, own = 1, self.order(lengths), self.inputs[operand]
        for label, size in zip(own, shape, strict=True):
            halo = WITHIN if label is None else self.halos.get(label, WITHIN)
            parts = 1 if label is None else self.count(label, lengths)
            count *= size + (parts - 1) * max(0, halo.overlap)
        last = max((i for i, label in enumerate(order) if label in own), default=0)
        return count * prod(self.count(at, lengths) for at in order[:last] if at not in own)

    def longest(self, label: int, lengths: Lengths) -> int:
        """Return the length of the longest part of a label."""
        return ceil(self.sizes[label] / self.count(label, lengths))

    def read_spans(self, operand: int, shape: Sequence[int], tile: Tile) -> tuple[Span, ...]:
        """Return what a tile reads of an operand along each axis.

        Spans of periodic axes may begin below 0 and end beyond the axis.
        """
        spans = []
        for label, size in zip(self.inputs[operand], shape, strict=True):
            if label is None or tile[label] == (0, self.sizes[label]):
                spans.append((0, size))
            else:
                spans.append(self.halos.get(label, WITHIN).span(tile[label], size))
        return tuple(spans)

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


def choose(notation: Notation, memory: Measure, cost: Measure, room: float) -> Lengths:
    """Return the lengths that fit and cost least, single elements if nothing fits.

    ``memory`` returns bytes, ``cost`` any measure. As few labels as possible are cut: halved, but
    for the last one, which has the length that fits. Then each is made as long as fits. Of equal
    choices the first label of the result is cut. If more labels must be cut than are tried, single
    elements are made longer, the last labels first.
    """
    whole, lengths = notation.sizes, notation.smallest
    if memory(whole) <= room:
        return whole
    if memory(lengths) > room:
        return lengths
    free = [label for label in notation.labels if whole[label] > 1]
    for count in range(1, min(MOST_CUT, len(free)) + 1):
        halved = (
            (last, {**whole, **dict(zip(others, tried, strict=True)), last: 1})
            for *others, last in combinations(free, count)
            for tried in product(*(_shorter(whole[label]) for label in others))
        )
        fits = [
            _longest(each, [at], whole, memory, room) for at, each in halved if memory(each) <= room
        ]
        if fits:
            lengths = min(fits, key=cost)
            break
    else:
        free.reverse()
    return _longest(lengths, free, whole, memory, room)


def _longest(
    found: Lengths, labels: Iterable[int], most: Lengths, memory: Measure, room: float
) -> dict[int, int]:
    """Return lengths that fit with some labels, in turn, made as long as fits."""
    found = dict(found)
    for label in labels:

        def nbytes(length: int, label: int = label) -> float:
            return memory({**found, label: length})

        longer = range(found[label], most[label] + 1)
        found[label] = longer[max(0, bisect_right(longer, room, key=nbytes) - 1)]
    return found


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


def _shorter(length: int) -> Iterator[int]:
    while length > 1:
        length = -(-length // 2)
        yield length
