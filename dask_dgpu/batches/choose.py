"""The choice of cuts: the least time for transfers and batches, within a device's memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, product

from dask_dgpu.batches.notation import Lengths, Notation

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

Measure = Callable[[Lengths], float]


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
