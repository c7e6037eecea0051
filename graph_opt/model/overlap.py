"""How the blocks of two chunk grids over the same array overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graph_opt.model.layout import Cuts

Lengths = np.ndarray[Any, np.dtype[np.float64]]


def common_lengths(source: Cuts, target: Cuts) -> Lengths:
    """Return the common length of each target chunk (rows) and each source chunk (columns)."""
    (s, t) = (np.asarray(cuts, float) for cuts in (source, target))
    start = np.maximum(t[:-1, None], s[None, :-1])
    stop = np.minimum(t[1:, None], s[None, 1:])
    return np.maximum(stop - start, 0.0)


def spread(values: Lengths, along: Sequence[Lengths]) -> Lengths:
    """Map values on one grid of blocks to another by one matrix (from, to) for each axis.

    With the transposes of :func:`common_lengths`, and 1 for some blocks of the source and 0 for
    others, the result is the number of elements that each target block shares with these.
    Floating point is quick, and exact up to 2**53 elements.
    """
    for matrix in along:
        values = np.tensordot(values, matrix, axes=(0, 0))  # appends the new axis at the end
    return values
