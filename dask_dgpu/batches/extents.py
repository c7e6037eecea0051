"""Where the elements of host arrays are: in memory, in files, and in stores."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from dask.array.core import Array
from numpy.lib.array_utils import byte_bounds

from dask_dgpu.batches.captured import arrays_in, is_array
from dask_dgpu.batches.named import own_attributes
from dask_dgpu.batches.stored import is_hdf5, is_zarr

MAPS = Path("/proc/self/maps")
START = 1 << 32
"""The address for byte 0 of a file: NumPy takes no array at address 0."""


class Extent(NamedTuple):
    """A range of bytes, or all, of a space: memory, a file or a stored array.

    ``array`` has the addresses of the elements in the space, ``None`` if all bytes of the range may
    be elements. ``keeps_writes`` is whether an array that is written changes nothing in the space,
    but shows what others change: a private map of a file.
    """

    space: Any
    start: float = 0
    stop: float = 1
    array: Any = None
    keeps_writes: bool = False


class MapOfFile(NamedTuple):
    """A file in memory, what leads from addresses to its bytes, and whether writes stay here."""

    file: Any
    shift: int
    is_private: bool


class Mapped:
    """The files that are mapped to this process's memory; see ``proc_pid_maps(5)``."""

    @cached_property
    def ranges(self) -> list[tuple[int, int, MapOfFile]] | None:
        """Each first address, the one after the last, and the map of a file, in order.

        ``None`` if the system does not tell.
        """
        try:
            lines = MAPS.read_text().splitlines()
        except OSError:
            return None
        found = []
        for line in lines:
            span, flags, offset, device, inode = line.split(maxsplit=5)[:5]
            if inode != "0":
                first, last = (int(each, 16) for each in span.split("-"))
                shift = int(offset, 16) - first
                found.append((first, last, MapOfFile((device, inode), shift, flags[3] == "p")))
        return found

    def file(self, array: np.ndarray[Any, Any]) -> MapOfFile | None:
        """Return the map of a file that an array is in, if any."""
        if array.flags.owndata:
            return None
        if self.ranges is None:
            return _by_name(array)
        address = byte_bounds(array)[0]
        at = bisect_right(self.ranges, address, key=lambda each: each[0]) - 1
        if at < 0 or address >= self.ranges[at][1]:
            return None
        return self.ranges[at][2]


def extents(value: Any, mapped: Mapped) -> Iterator[Extent]:
    """Yield where the elements of an array are, or of those that a graph or a function holds."""
    found = is_array(value) and not isinstance(value, Array)
    for each in (value,) if found else arrays_in(value):
        yield from _of_array(each, mapped)


def _of_array(array: Any, mapped: Mapped) -> Iterator[Extent]:
    if isinstance(array, np.generic):
        return  # no memory to write, but NumPy has one True for all, such as fill values of zarr
    if isinstance(array, np.ndarray):
        yield from _in_memory(array, mapped)
        return
    yield Extent(_Same(array))
    yield from map(Extent, (*_in_zarr(array), *_in_hdf5(array)))
    for each in arrays_in(list(own_attributes(array).values())):  # of a wrapper
        yield from _of_array(each, mapped)


def _in_memory(array: np.ndarray[Any, Any], mapped: Mapped) -> Iterator[Extent]:
    if array.nbytes == 0:
        return
    start, stop = byte_bounds(array)
    yield Extent("memory", start, stop, array)
    found = mapped.file(array)
    if found is not None:
        shift = found.shift + START
        moved = np.asarray(_Moved(array, shift))
        yield Extent(found.file, start + shift, stop + shift, moved, found.is_private)


class _Moved:
    """An array at other addresses, which nobody may read: NumPy compares them."""

    def __init__(self, array: np.ndarray[Any, Any], shift: int) -> None:
        self.__array_interface__ = {
            "version": 3,
            "shape": array.shape,
            "typestr": f"|V{array.itemsize}",
            "strides": array.strides,
            "data": (array.__array_interface__["data"][0] + shift, True),
        }


def _by_name(array: np.ndarray[Any, Any]) -> MapOfFile | None:
    """Return the map of a file that a view of a memory map is in."""
    base: Any = array
    mapped: np.memmap[Any, Any] | None = None
    while isinstance(base, np.ndarray):
        mapped = base if isinstance(base, np.memmap) else mapped
        base = base.base
    if mapped is None or mapped.filename is None:
        return None
    try:
        file = os.stat(mapped.filename)
    except OSError:  # it has lost its name
        return None
    shift = mapped.offset - byte_bounds(mapped)[0]
    return MapOfFile((file.st_dev, file.st_ino), shift, mapped.mode == "c")


def _in_zarr(array: Any) -> Iterator[Any]:
    """Yield where a zarr array is stored: a file or, in memory, the path in a mapping."""
    if not is_zarr(array):
        return
    inside = array.store_path
    store = inside.store
    while hasattr(store, "_store"):  # a wrapper that logs or waits
        store = store._store
    root = getattr(store, "root", None) or getattr(store, "path", None)
    if root is None:
        yield id(getattr(store, "_store_dict", store)), inside.path
    else:
        yield os.path.realpath(f"{root}/{inside.path}")


def _in_hdf5(array: Any) -> Iterator[Any]:
    """Yield what tells an HDF5 dataset, and those that a virtual one shows.

    Its hash is one for all its names, but changes if the file is opened anew; its path does not.
    """
    if not is_hdf5(array) or not array:  # of a file that is closed
        return
    file = array.file.filename
    path = os.path.realpath(os.fsdecode(file))
    yield path, array.name
    yield "hdf5", hash(array)
    for source in _sources(array, path) if array.is_virtual else ():
        yield from _in_hdf5(source)


def _sources(dataset: Any, path: str) -> Iterator[Any]:
    """Yield the datasets that a virtual one shows, as far as they exist: HDF5 fills in others."""
    for source in dataset.virtual_sources():
        if source.file_name == ".":
            if source.dset_name in dataset.file:
                yield dataset.file[source.dset_name]
            continue
        for folder in (os.path.dirname(path), os.curdir):  # HDF5 looks into both
            other = os.path.join(folder, source.file_name)
            with suppress(OSError, KeyError), type(dataset.file)(other, "r") as file:
                yield file[source.dset_name]


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
