"""How the blocks of two chunk grids over the same array overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graph_opt.model.layout import Cuts

Lengths = np.ndarray[Any, np.dtype[np.float64]]


def common_lengths(source: Cuts, target: Cuts) -> Lengths:
    """Return the length that each target chunk (rows) has in common with each source chunk."""
    (s, t) = (np.asarray(cuts, float) for cuts in (source, target))
    start = np.maximum(t[:-1, None], s[None, :-1])
    stop = np.minimum(t[1:, None], s[None, 1:])
    return np.maximum(stop - start, 0.0)


def spread(values: Lengths, along: Sequence[Lengths]) -> Lengths:
    """Sum over one grid for each block of another: one matrix (from, to) for each axis.

    With :func:`common_lengths` transposed and 1 for some blocks of the source, this
    gives the elements that each target block has in common with these. In floating
    point, which is quick, and exact up to 2**53 elements.
    """
    for matrix in along:
        values = np.tensordot(values, matrix, axes=(0, 0))  # that axis becomes the last
    return values
