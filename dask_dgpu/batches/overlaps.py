"""Whether host arrays may have elements in common."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from dask.array.core import Array
from dask.highlevelgraph import MaterializedLayer
from numpy.lib.array_utils import byte_bounds

from graph_opt.dask_graph.internals import DataNode


class Extent(NamedTuple):
    """A range of bytes, or all, of a space: memory, a file or a stored array."""

    space: Any
    start: float = 0
    stop: float = 1


def overlap(written: Mapping[str, Any], read: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the names of an array that is written and of another one that may share elements.

    Parameters
    ----------
    written, read : mapping of str to array
        Host arrays by name. Graphs of Dask arrays that are read count with all that they read.

    Returns
    -------
    tuple of str, or None
        The name of a written array, and of one that is read, or of another written one.
    """
    spaces: dict[Any, list[tuple[Extent, str, bool]]] = {}
    for arrays, is_written in ((written, True), (read, False)):
        for name, array in arrays.items():
            for each in _extents(array):
                spaces.setdefault(each.space, []).append((each, name, is_written))
    for found in spaces.values():
        ends: dict[bool, tuple[float, str]] = {}  # the farthest of those before
        for extent, name, is_written in sorted(found, key=lambda each: each[0].start):
            for other in (True, False) if is_written else (True,):
                stop, before = ends.get(other, (extent.start, name))
                if extent.start < min(stop, extent.stop):
                    return (name, before) if is_written else (before, name)
            ends[is_written] = max(ends.get(is_written, (extent.stop, name)), (extent.stop, name))
    return None


def _extents(array: Any) -> Iterator[Extent]:
    """Yield where the elements of an array are."""
    if isinstance(array, Array):
        for each in _read_by(array):
            yield from _extents(each)
    elif isinstance(array, np.ndarray):
        yield Extent("memory", *byte_bounds(array)) if array.size else Extent("memory", 0, 0)
        yield from _in_file(array)
    else:
        yield Extent(_place(array) or _Same(array))


def _read_by(array: Array) -> Iterator[Any]:
    """Yield the arrays in a graph: stored blocks, and what ``da.from_array`` reads."""
    for layer in array.dask.layers.values():
        for value in layer.values() if isinstance(layer, MaterializedLayer) else ():
            found = value.value if isinstance(value, DataNode) else value
            if hasattr(found, "shape") and hasattr(found, "dtype"):
                yield found


def _in_file(array: np.ndarray[Any, Any]) -> Iterator[Extent]:
    """Yield the bytes of its file that a view of a memory map has."""
    base: Any = array
    mapped: np.memmap[Any, Any] | None = None
    while isinstance(base, np.ndarray):
        mapped = base if isinstance(base, np.memmap) else mapped
        base = base.base
    if mapped is None or mapped.filename is None:
        return
    try:
        file = os.stat(mapped.filename)
    except OSError:  # it has lost its name
        return
    begin = mapped.offset - byte_bounds(mapped)[0]
    start, stop = byte_bounds(array)
    yield Extent((file.st_dev, file.st_ino), begin + start, begin + stop)


def _place(array: Any) -> str | None:
    """Return where a zarr array is stored, ``None`` for other arrays and in memory."""
    inside = getattr(array, "store_path", None)
    store = getattr(inside, "store", None)
    root = getattr(store, "root", None) or getattr(store, "path", None)
    return None if inside is None or root is None else os.path.realpath(f"{root}/{inside.path}")


class _Same:
    """Equal for one array, and for handles of one dataset, which have the same hash."""

    def __init__(self, array: Any) -> None:
        self.array = array
        try:
            self.hash = hash(array)
        except TypeError:
            self.hash = id(array)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Same):
            return False
        same_type = type(self.array) is type(other.array)
        return self.array is other.array or (same_type and (self.array == other.array) is True)
