"""Whether an array that a call writes may share elements with another argument."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from dask.array.core import Array
from dask.blockwise import Blockwise
from numpy.lib.array_utils import byte_bounds

from dask_dgpu.batches.stored import is_hdf5, is_zarr
from graph_opt.dask_graph.internals import DataNode, TaskRef
from graph_opt.dask_graph.parse import GETTERS

MOST_WORK: Any = 10_000  # NumPy's stubs know two numbers only
"""Steps after which two arrays are taken to share elements: an exact answer may take for ever."""


class _Argument(NamedTuple):
    """An array, and the bytes of its space that it spans."""

    start: int
    stop: int
    array: Any
    name: str
    is_written: bool


def check_no_overlap(written: Mapping[str, Any], read: Mapping[str, Any]) -> None:
    """Raise if written arrays may have elements in common with others; names are of arguments.

    NumPy arrays are compared by their memory, arrays of zarr and HDF5 by path and name, other
    objects by identity. A Dask array counts as the arrays from which its graph reads blocks.
    """
    spaces: dict[Any, list[_Argument]] = {}
    for arguments, is_written in ((written, True), (read, False)):
        for name, value in arguments.items():
            for array in _sources(value) if isinstance(value, Array) else (value,):
                span = byte_bounds(array) if isinstance(array, np.ndarray) else (0, 1)
                found = _Argument(*span, array, name, is_written)
                spaces.setdefault(_space(array), []).append(found)
    for arrays in spaces.values():
        _check_apart(arrays)


def _sources(array: Array) -> Iterator[Any]:
    """Yield the arrays from which a graph reads blocks, as ``da.from_array`` of stored ones."""
    for layer in array.dask.layers.values():
        if isinstance(layer, Blockwise) and getattr(layer.task, "func", None) in GETTERS:
            source = layer.indices[0][0]
            if isinstance(source, TaskRef):
                source = array.dask.get(source.key)
            yield source.value if isinstance(source, DataNode) else source


def _space(array: Any) -> Any:
    """Return where an array is: in memory, or in an array that is stored."""
    if isinstance(array, np.ndarray):
        return "memory"
    if is_zarr(array):
        inside = array.store_path
        root = getattr(inside.store, "root", None) or getattr(inside.store, "path", None)
        return str(inside) if root is None else os.path.realpath(f"{root}/{inside.path}")
    if is_hdf5(array):
        return os.path.realpath(array.file.filename), array.name
    return id(array)


def _check_apart(arrays: Iterable[_Argument]) -> None:
    """Raise if arrays of one space overlap; go through them in the order of their first bytes."""
    before: list[_Argument] = []
    for each in sorted(arrays, key=lambda each: each.start):
        before = [other for other in before if each.start < other.stop]
        for other in before:
            if (each.is_written or other.is_written) and _share(each.array, other.array):
                out, operand = (each, other) if each.is_written else (other, each)
                raise ValueError(
                    f"expected {out.name} not to share memory with {operand.name}, got an overlap"
                )
        before.append(each)


def _share(one: Any, other: Any) -> bool:
    """Whether two arrays whose bytes overlap have an element in common."""
    if not isinstance(one, np.ndarray):
        return True
    try:
        return np.shares_memory(one, other, max_work=MOST_WORK)
    except np.exceptions.TooHardError:
        return True
