"""Who owns which part of an axis: arithmetic on cuts, nothing else.

An axis of chunks ``(3, 3, 2)`` has the cuts ``(0, 3, 6, 8)``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

Cuts = tuple[int, ...]
Span = tuple[int, int]


def cuts_of(sizes: Sequence[int]) -> Cuts:
    """Return the positions at which an axis of these chunk sizes is cut."""
    return (0, *accumulate(sizes))


def even_spans(start: int, stop: int, parts: int) -> tuple[Span, ...]:
    """Cut ``[start, stop)`` into ``parts`` spans whose lengths differ by one at most."""
    length = stop - start
    edges = [start + length * part // parts for part in range(parts + 1)]
    return tuple(pairwise(edges))


def block_spans(cuts: Cuts, parts: int) -> tuple[Span, ...]:
    """Deal whole chunks to ``parts`` owners, contiguous and near equal in length.

    Returns spans of chunk indices; some are empty when there are fewer chunks
    than owners.
    """
    chunks, length = len(cuts) - 1, cuts[-1]
    edges = [0]
    for part in range(1, parts):
        ideal = length * part / parts
        edge = max(edges[-1], min(range(chunks + 1), key=lambda i: abs(cuts[i] - ideal)))
        if length == 0:
            edge = chunks * part // parts
        edges.append(edge)
    edges.append(chunks)
    return tuple(pairwise(edges))


def dealt(blocks: int, owners: int) -> tuple[int, ...]:
    """Return the owner of each of so many blocks, dealt out evenly in their order."""
    spans = block_spans(tuple(range(blocks + 1)), owners)
    return tuple(owner for owner, (lo, hi) in enumerate(spans) for _ in range(lo, hi))


def overlaps(cuts: Cuts, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield ``(chunk, lo, hi)`` for every chunk that ``[start, stop)`` cuts.

    ``lo`` and ``hi`` are positions on the axis, not within the chunk. Empty
    chunks and empty spans yield nothing.
    """
    for chunk in range(len(cuts) - 1):
        lo, hi = max(start, cuts[chunk]), min(stop, cuts[chunk + 1])
        if lo < hi:
            yield chunk, lo, hi
