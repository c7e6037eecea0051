"""Parts of a collective: each is a region that computes some of the blocks.

::

    2 x 1 parts of 5 x 5 blocks      3 x 2 parts

    +--------------+                 +-----+--------+
    |              |                 +-----+--------+
    +--------------+                 |     |        |
    |              |                 +-----+--------+
    |              |                 |     |        |
    +--------------+                 +-----+--------+

The parts of a product may also be the terms of a sum: each reads a part of the contracted axis, and
their results are added.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, groupby
from math import prod

from graph_opt.model.layout import ArrayNode, Index, block_spans, cuts_of
from graph_opt.model.piece import Region

Counts = tuple[int, ...]
"""The number of spans along each axis, and the number of terms."""

Units = list[list[list[int]]]
"""For each axis the lines of blocks that are computed together."""


def finer(region: Region) -> Iterator[list[Region]]:
    """Yield the parts of a region of one piece, each time more and smaller ones.

    Each time one more axis of the result, or the same one again, is cut into more spans of blocks,
    or the summed axis of a product: the one that leaves least for the largest part to read and
    compute. So products are cut into tiles and stencils into bands. Nothing is yielded if a part
    would need all that the whole needs.
    """
    units = _units(region)
    most = (*map(len, units), len(region.pieces[0].summed) - 1)
    counts = (1,) * len(most)
    if load(largest(_parts(region, units, most))) >= load(region):
        return
    while counts != most:
        grown = [
            (*counts[:axis], min(count + 1 + count // 4, most[axis]), *counts[axis + 1 :])
            for axis, count in enumerate(counts)
            if count < most[axis]
        ]
        tried = {each: _parts(region, units, each) for each in grown}
        counts = min(grown, key=lambda each: load(largest(tried[each])))
        yield tried[counts]


def in_turn(parts: Iterable[Region]) -> Iterator[Region]:
    """Yield regions of one result each, as parts that run one after another."""
    before: Region | None = None
    for part in parts:
        if before is not None:
            ((name, blocks),) = before.wanted
            part = replace(part, after=(before.token, (name, blocks[-1])))
        yield part
        before = part


def largest(parts: Sequence[Region]) -> Region:
    """Return the part with most of the result, and of those the one with the longest term."""
    return max(parts, key=lambda part: (nbytes(*_result(part)), part.pieces[0].summed[-1]))


def load(part: Region) -> int:
    """Return the bytes that a region of one piece reads and computes."""
    (piece,) = part.pieces
    return sum(nbytes(*each) for each in ((piece.output, piece.computed), *part.inputs))


def nbytes(node: ArrayNode, blocks: Iterable[Index]) -> int:
    """Return the bytes of some blocks of an array."""
    return node.itemsize * sum(prod(node.block_shape(index)) for index in blocks)


def extent(node: ArrayNode, blocks: Iterable[Index]) -> tuple[int, ...]:
    """Return the length of some blocks of an array along each axis."""
    lines = map(set, zip(*blocks, strict=True))
    return tuple(
        sum(sizes[at] for at in along) for sizes, along in zip(node.chunks, lines, strict=False)
    )


def rows_of(whole: Region, parts: Sequence[Region]) -> int:
    """Return the longest part of the first axis that is cut: of the result, or else of a sum."""
    longest = map(max, zip(*(extent(*_result(part)) for part in parts), strict=True))
    for length, most in zip(extent(*_result(whole)), longest, strict=True):
        if most < length:
            return most
    return max(part.pieces[0].summed[-1] for part in parts)


def _result(part: Region) -> tuple[ArrayNode, tuple[Index, ...]]:
    ((name, blocks),) = part.wanted
    return part.nodes[name], blocks


def _units(region: Region) -> Units:
    """Return the units with wanted blocks, without other lines."""
    (piece,), ((_, wanted),) = region.pieces, region.wanted
    whole = []
    for along, cuts in zip(zip(*wanted, strict=True), piece.units, strict=True):
        units = groupby(sorted({*along}), key=partial(bisect_right, cuts))
        whole.append([list(lines) for _, lines in units])
    return whole


def _parts(region: Region, units: Units, counts: Counts) -> list[Region]:
    """Cut the wanted blocks along each axis, and sums, into so many spans of about equal length."""
    (piece,), (node, wanted) = region.pieces, _result(region)
    numbers = []
    for along, sizes, count in zip(units, node.chunks, counts[:-1], strict=True):
        lengths = [sum(sizes[at] for at in lines) for lines in along]
        spans = block_spans(cuts_of(lengths), count)
        numbers.append(
            {at: k for k, (lo, hi) in enumerate(spans) for at in chain.from_iterable(along[lo:hi])}
        )
    parts: defaultdict[Index, list[Index]] = defaultdict(list)
    for index in wanted:
        parts[tuple(of[at] for of, at in zip(numbers, index, strict=True))].append(index)
    tiles = [
        Region(
            (piece.restrict(frozenset(blocks)),), ((node.name, tuple(blocks)),), region.annotations
        )
        for _, blocks in sorted(parts.items())
    ]
    if counts[-1] == 1:
        return tiles
    return [term for tile in tiles for term in _terms(tile, counts[-1])]


def _terms(tile: Region, count: int) -> Iterator[Region]:
    """Yield regions for so many terms of nearly equal length, which add up to a region's blocks."""
    (piece,), ((name, blocks),) = tile.pieces, tile.wanted
    spans = [(lo, hi) for lo, hi in block_spans(piece.summed, count) if lo < hi]
    if len(spans) == 1:  # the other blocks are empty
        yield tile
        return
    for lo, hi in spans:
        term = piece.term(lo, hi)
        yield replace(tile, members=(term,), wanted=((term.output.name, blocks),), term_of=name)
