"""Whether two host arrays may have elements in common."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from dask.array.core import Array
from dask.highlevelgraph import MaterializedLayer
from numpy.lib.array_utils import byte_bounds

from graph_opt.dask_graph.internals import DataNode


class Extent(NamedTuple):
    """A range of bytes of a file."""

    path: Path
    start: int
    stop: int


def may_overlap(out: Any, source: Any) -> bool:
    """Return whether writing to a host array may change another one, or one that a graph reads."""
    if isinstance(source, Array):
        return any(may_overlap(out, each) for each in _read_by(source))
    if isinstance(out, np.ndarray) and isinstance(source, np.ndarray):
        return np.may_share_memory(out, source) or _same_bytes(_extent(out), _extent(source))
    if isinstance(out, np.ndarray) or isinstance(source, np.ndarray):
        return False
    place = _place(out)
    if place is not None and place == _place(source):
        return True
    return out is source or bool(type(out) is type(source) and (out == source) is True)


def _read_by(array: Array) -> Iterator[Any]:
    """Yield the arrays in a graph: stored blocks, and what ``da.from_array`` reads."""
    for layer in array.dask.layers.values():
        for value in layer.values() if isinstance(layer, MaterializedLayer) else ():
            found = value.value if isinstance(value, DataNode) else value
            if hasattr(found, "shape") and hasattr(found, "dtype"):
                yield found


def _extent(array: np.ndarray[Any, Any]) -> Extent | None:
    """Return the bytes of its file that a view of a memory map reads."""
    base: Any = array
    mapped: np.memmap[Any, Any] | None = None
    while isinstance(base, np.ndarray):
        mapped = base if isinstance(base, np.memmap) else mapped
        base = base.base
    if mapped is None or mapped.filename is None:
        return None
    begin = mapped.offset - byte_bounds(mapped)[0]
    start, stop = byte_bounds(array)
    return Extent(Path(mapped.filename), begin + start, begin + stop)


def _same_bytes(one: Extent | None, other: Extent | None) -> bool:
    if one is None or other is None or max(one.start, other.start) >= min(one.stop, other.stop):
        return False
    try:
        return one.path.samefile(other.path)
    except OSError:  # the file has lost its name
        return one.path == other.path


def _place(array: Any) -> str | None:
    """Return where a zarr array is stored, ``None`` for other arrays and in memory."""
    inside = getattr(array, "store_path", None)
    store = getattr(inside, "store", None)
    root = getattr(store, "root", None) or getattr(store, "path", None)
    return None if inside is None or root is None else os.path.realpath(f"{root}/{inside.path}")
