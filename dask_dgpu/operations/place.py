"""Where the blocks of a redistributed array go, if nobody says."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from dask_dgpu.operations.value import Value
from graph_opt.model.layout import Index, Layout, block_spans, common_lengths, cuts_of, spread

MOST_PRODUCTS = 1 << 28
"""Blocks are dealt out in order if finding out who has most of each takes more."""

Elements = np.ndarray[Any, np.dtype[np.float64]]


def place(source: Layout, result: Value, size: int) -> Layout:
    """Give every rank about its share of a result, most of it from its own blocks.

    Parameters
    ----------
    source : Layout
        Where the array is.
    result : Value
        How its blocks shall be cut, and which of them are wanted.
    size : int
        Number of ranks.

    Returns
    -------
    Layout
        No rank has more elements than the fullest would if contiguous blocks were
        dealt out evenly, or but little more where blocks differ much.

    Notes
    -----
    Blocks choose in the order of how much of them one rank has. Each takes the rank
    that has most of it and still has room; among equals the one that it would be
    dealt to.
    """
    wanted = list(result.indices())
    lengths = [[hi - lo for lo, hi in pairwise(cuts)] for cuts in result.cuts]
    sizes = [prod(axis[at] for axis, at in zip(lengths, index, strict=True)) for index in wanted]
    owners = _dealt(sizes, size)
    if _products(source, result) * size <= MOST_PRODUCTS:
        owners = _settled(_held(source, result, wanted, size), sizes, owners)
    return result.placed(owners).layout


def _dealt(sizes: list[int], size: int) -> list[int]:
    """Deal blocks out in order, near equal in size; empty ones near equal in number."""
    weights = sizes if any(sizes) else [1] * len(sizes)
    spans = block_spans(cuts_of(weights), size)
    return [rank for rank, (lo, hi) in enumerate(spans) for _ in range(lo, hi)]


def _products(source: Layout, result: Value) -> int:
    """Multiplications for the elements of every result block that one rank has."""
    grid, total = list(source.grid), 0
    for axis, blocks in enumerate(result.grid):
        total += prod(grid) * blocks
        grid[axis] = blocks
    return total


def _held(source: Layout, result: Value, wanted: list[Index], size: int) -> Elements:
    """Return the elements of each wanted block that each rank has, (blocks, ranks)."""
    owners = np.array(source.owners, np.int64).reshape(source.grid)
    common = [common_lengths(*cuts).T for cuts in zip(source.cuts, result.cuts, strict=True)]
    held = np.empty((len(wanted), size))
    grid = result.grid
    places = [int(np.ravel_multi_index(index, grid)) for index in wanted]
    for rank in range(size):
        held[:, rank] = spread((owners == rank).astype(float), common).reshape(-1)[places]
    return held


def _settled(held: Elements, sizes: list[int], dealt: list[int]) -> list[int]:
    """Let each block take the rank that has most of it, as long as that one has room."""
    if (held == held[:, :1]).all():
        return dealt
    load = np.zeros(held.shape[1], np.int64)
    np.add.at(load, dealt, sizes)
    room = int(load.max(initial=0))
    load[:] = 0
    owners = list(dealt)
    for block in np.argsort(-held.max(axis=1, initial=0), kind="stable").tolist():
        fits = load + sizes[block] <= room
        if not fits.any():
            fits = load == load.min()
        mine = np.where(fits, held[block], -1)
        best = int(mine.argmax())
        owners[block] = dealt[block] if mine[dealt[block]] == mine[best] else best
        load[owners[block]] += sizes[block]
    return owners
