"""The table from which one kernel copies many pieces, computed in NumPy.

A row describes one piece as an array of *words* of 1 to 16 bytes. Axes without gaps on both sides
are merged, and words are as wide as addresses, lengths and strides allow::

    float32, shape (5, 3, 8)                       shape in words   of bytes
    contiguous on both sides            ->         (30,)            16
    rows of 8 within wider rows, aligned ->        (15, 2)          16
    every second element                ->         (5, 3, 8)        4
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dask_dgpu.kernels.pack import Ints, Pieces

Mask = np.ndarray[Any, np.dtype[np.bool_]]

MAX_NDIM = 8
"""Most axes of the kernel, after merging."""

MOST_WORDS = 2**31 - 1
"""Most words of a piece, which the kernel counts in 32 bits."""

WIDEST = 16
"""Bytes of the widest word of a GPU's loads and stores."""

TILE = 2048
"""Words of one thread block."""

TARGET, SOURCE, WIDTH, NDIM, WORDS, LENGTHS = range(6)
"""Columns of the table; lengths, target strides and source strides have ``MAX_NDIM`` each."""

TARGET_STRIDES = LENGTHS + MAX_NDIM
SOURCE_STRIDES = TARGET_STRIDES + MAX_NDIM
COLUMNS = SOURCE_STRIDES + MAX_NDIM


class Table(NamedTuple):
    """The input of the kernel.

    Attributes
    ----------
    rows : array of int
        One for each piece that is not empty: (pieces, ``COLUMNS``), axes from the innermost on.
    tiles : array of int
        The first tile of each piece, and the number of tiles.
    """

    rows: Ints
    tiles: Ints


def describe(batches: tuple[Pieces, ...]) -> Table | None:
    """Describe pieces to the kernel; ``None`` if a piece has too many axes or words for it."""
    tables = [_rows(pieces) for pieces in batches if len(pieces.shapes)]
    known = [rows for rows in tables if rows is not None]
    if len(known) < len(tables):
        return None
    rows = np.concatenate([np.zeros((0, COLUMNS), np.int64), *known])
    tiles = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(-(-rows[:, WORDS] // TILE), out=tiles[1:])
    return Table(rows, tiles)


def _rows(pieces: Pieces) -> Ints | None:
    """Describe the pieces of one batch."""
    target, source = pieces.target.bases, pieces.source.bases
    # the last bits of addresses limit the width of words
    ends = target % WIDEST, source % WIDEST
    places = _known(pieces, ends)
    if places is None:
        return None
    full, relative = places
    rows = relative.copy()
    rows[:, TARGET] += (target - ends[0])[full]
    rows[:, SOURCE] += (source - ends[1])[full]
    return rows


def _known(pieces: Pieces, ends: tuple[Ints, Ints]) -> tuple[Mask, Ints] | None:
    """Return the cached description if only the addresses of the arrays have changed.

    Their last bits count: blocks may be in the middle of their storage.
    """
    if pieces.described is None:
        return _places(pieces, ends)
    form = pieces.target.form, pieces.source.form, ends[0].tobytes(), ends[1].tobytes()
    last = pieces.described.last
    if last is None or last[0] != form:
        last = pieces.described.last = form, _places(pieces, ends)
    known: tuple[Mask, Ints] | None = last[1]
    return known


def _places(pieces: Pieces, bases: tuple[Ints, Ints]) -> tuple[Mask, Ints] | None:
    """Return a mask of the pieces that are not empty, and their rows."""
    shapes, itemsize = pieces.shapes, pieces.target.itemsize
    target, target_strides = pieces.target.offsets(shapes)
    source, source_strides = pieces.source.offsets(shapes)
    target, source = target + bases[0], source + bases[1]
    full: Mask = np.all(shapes, axis=1)
    axes = np.stack([shapes, target_strides, source_strides])[:, full]
    # along the target's memory, for contiguous writes
    order = np.argsort(np.abs(axes[1]), axis=1, kind="stable")
    axes = np.take_along_axis(axes, order[None], axis=2)
    # an element is an axis of bytes, which merges with its row if that is contiguous
    element = np.broadcast_to(np.array([itemsize, 1, 1])[:, None, None], (3, full.sum(), 1))
    merged = _merge(np.concatenate([element, axes], axis=2))
    target, source = target[full], source[full]
    merged, width = _widen(merged, target, source)
    ndim = np.maximum(1, (merged[0] > 1).sum(axis=1))
    words = merged[0].prod(axis=1)
    if ndim.max(initial=0) > MAX_NDIM or words.max(initial=0) > MOST_WORDS:
        return None
    rows = np.zeros((len(target), COLUMNS), np.int64)
    rows[:, TARGET], rows[:, SOURCE], rows[:, WIDTH], rows[:, NDIM] = target, source, width, ndim
    rows[:, WORDS] = words
    kept = min(MAX_NDIM, merged.shape[2])
    for column, values in zip((LENGTHS, TARGET_STRIDES, SOURCE_STRIDES), merged, strict=True):
        rows[:, column : column + kept] = values[:, :kept]
    return full, rows


def _merge(axes: Ints) -> Ints:
    """Merge each axis with the next inner one if there is no gap on both sides.

    ``axes`` are lengths, target strides and source strides of each piece, from the innermost axis
    on: (3, pieces, axes). Axes of length 1 end up last.
    """
    merged = np.zeros_like(axes)
    merged[0] = 1
    merged[:, :, 0] = axes[:, :, 0]
    pieces = np.arange(axes.shape[1])
    at = np.zeros(len(pieces), np.int64)
    for axis in np.moveaxis(axes, 2, 0)[1:]:
        inner = merged[:, pieces, at]
        joins = (axis[1:] == inner[0] * inner[1:]).all(axis=0)
        merged[0, pieces, at] *= np.where(joins | (axis[0] == 1), axis[0], 1)
        opens = ~joins & (axis[0] > 1)
        at += opens
        merged[:, pieces[opens], at[opens]] = axis[:, opens]
    return merged


def _widen(axes: Ints, target: Ints, source: Ints) -> tuple[Ints, Ints]:
    """Count the innermost axis, which is in bytes, in words; return axes and widths."""
    outer = np.where(axes[0, :, 1:] > 1, axes[1:, :, 1:], 0)
    bits = np.bitwise_or.reduce(outer, axis=(0, 2)) | axes[0, :, 0] | target | source | WIDEST
    width = bits & -bits
    axes = axes.copy()
    axes[0, :, 0] //= width
    axes[1:, :, 0] *= width
    # one word a row: the next axis takes its place
    single = (axes[0, :, 0] == 1)[None, :, None]
    shifted = np.roll(axes, -1, axis=2)
    return np.where(single, shifted, axes), width
