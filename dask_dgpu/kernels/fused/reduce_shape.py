"""Which threads reduce what: thread blocks, segments, and loads at a time."""

from __future__ import annotations

from typing import NamedTuple

from dask_dgpu.kernels.fused.kernel import THREADS

MULTIPROCESSORS = 132
"""Of an H100 or H200; other devices are as busy with twice as many or half."""

BLOCKS = 8 * MULTIPROCESSORS
"""Thread blocks along rows."""

RESIDENT = 4
"""Thread blocks along columns that a multiprocessor holds at a time; all start at once."""

HEAVY = 4
"""Words of states for each element that leave registers for so many thread blocks."""

WARP = 32
LONG = 1024
"""Vectors of a row from which on a whole thread block reads it."""

BATCH = 32
"""Most elements that a thread loads at a time."""

SHORT = 4
"""Batches of one thread block that take less time than a second launch."""

STRETCH = 16
"""Batches that are accumulated before they are merged with those before."""


class Shape(NamedTuple):
    """Thread blocks for results and segments, and what the source knows of it."""

    grid: tuple[int, int]
    stretch: int  # elements of a segment
    folding: int  # threads that merge the segments of one result
    macros: dict[str, int]


def rows_shape(results: int, length: int, lanes: int, weight: int) -> Shape:
    """Return the shape for results shared by groups of threads; ``weight`` words of states."""
    vectors = -(-length // lanes)
    group = min(WARP, 1 << (-(-vectors // (2 if lanes > 1 else 8)) - 1).bit_length())
    if vectors >= LONG or (vectors > 2 * WARP and results < BLOCKS * THREADS // WARP):
        group = THREADS
    deep = _batch(-(-vectors // group), lanes, weight)
    blocks = -(-results * group // THREADS)
    span = group * lanes * deep
    segments = 1
    if group == THREADS and length > SHORT * span:
        segments = max(1, min(BLOCKS // blocks, vectors // (group * deep)))
    stretch = -(-length // (segments * span)) * span
    segments = -(-length // stretch)
    macros = {"group": group, "lanes": lanes, "deep": deep}
    return _shape((blocks, segments), stretch, results, macros)


def columns_shape(results: int, length: int, lanes: int, weight: int) -> Shape:
    """Return the shape for results of neighbouring threads; ``weight`` words of states."""
    vectors = -(-results // lanes)
    least = WARP if length >= THREADS // WARP else THREADS >> (length - 1).bit_length()
    across = min(least, 1 << (vectors - 1).bit_length())
    down = THREADS // across
    deep = _batch(-(-length // down), lanes, weight)
    blocks = -(-vectors // across)
    resident = RESIDENT if weight <= HEAVY else RESIDENT // 2
    wave = MULTIPROCESSORS * resident
    segments = 1
    if length > SHORT * down * deep:
        segments = max(1, min(wave // blocks, length // (down * deep), 65535))
    stretch = -(-length // (segments * down * deep)) * down * deep
    segments = -(-length // stretch)
    macros = {"across": across, "lanes": lanes, "deep": deep, "resident": resident}
    return _shape((blocks, segments), stretch, results, macros)


def _batch(needed: int, lanes: int, weight: int) -> int:
    """Return a power of two of loads at a time, for so many in all."""
    most = max(1, BATCH // lanes // (2 if weight > 2 else 1))
    return min(most, 8, 1 << (max(1, needed).bit_length() - 1))


def _shape(grid: tuple[int, int], stretch: int, results: int, macros: dict[str, int]) -> Shape:
    folding = THREADS if results < MULTIPROCESSORS else WARP
    known = {"threads": THREADS, "batches": STRETCH, "folding": folding}
    return Shape(grid, stretch, folding, macros | known)
