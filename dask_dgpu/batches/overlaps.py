"""Whether host arrays may have elements in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from dask_dgpu.batches.extents import Extent, Mapped, extents

MOST_WORK: Any = 10_000  # NumPy's stubs know two numbers only
"""Steps after which two arrays are taken to share elements: an exact answer may take for ever."""

Found = tuple[str, str]


def overlap(written: Mapping[str, Any], read: Mapping[str, Any]) -> Found | None:
    """Return the names of an array that is written and of another one that may share elements.

    Parameters
    ----------
    written, read : mapping of str to array
        Host arrays by name. Graphs of Dask arrays that are read count with all that they read, and
        functions with the arrays that they hold.

    Returns
    -------
    tuple of str, or None
        The name of a written array, and of one that is read, or of another written one.
    """
    spaces: dict[Any, list[tuple[Extent, str, bool]]] = {}
    mapped = Mapped()
    for arrays, is_written in ((written, True), (read, False)):
        for name, array in arrays.items():
            for each in extents(array, mapped):
                is_changed = is_written and not each.keeps_writes
                spaces.setdefault(each.space, []).append((each, name, is_changed))
    pairs = (_overlap(found) for found in spaces.values())
    return next((pair for pair in pairs if pair is not None), None)


def _overlap(found: Iterable[tuple[Extent, str, bool]]) -> Found | None:
    """Return the names of two arrays in a space; go through their extents by where they start."""
    open_ones: list[tuple[Extent, str, bool]] = []
    for each in sorted(found, key=lambda each: each[0].start):
        extent, name, is_written = each
        open_ones = [other for other in open_ones if extent.start < other[0].stop]
        for other, before, was_written in open_ones:
            if name != before and (is_written or was_written) and _share(extent, other):
                return (name, before) if is_written else (before, name)
        open_ones.append(each)
    return None


def _share(one: Extent, other: Extent) -> bool:
    """Whether two ranges of bytes that overlap have an element in common."""
    if one.array is None or other.array is None:
        return True
    try:
        return np.shares_memory(one.array, other.array, max_work=MOST_WORK)
    except np.exceptions.TooHardError:
        return True
