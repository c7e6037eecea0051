"""Where results go: arrays of users, temporary arrays, and sums of batches."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import prod
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import dask
import numpy as np
import psutil
from dask.array.core import Array
from dask.utils import format_bytes
from numpy.lib.array_utils import byte_bounds

from dask_dgpu.arguments import expected
from dask_dgpu.batches.notation import Span, Tile
from dask_dgpu.batches.ring import pieces
from dask_dgpu.batches.sources import (
    REFUSED,
    Operand,
    Region,
    Room,
    Shape,
    Slot,
    is_hdf5,
    is_zarr,
)
from dask_dgpu.batches.windows import THREADS
from dask_dgpu.errors import DgpuError
from graph_opt.model.layout import is_inexact

if TYPE_CHECKING:
    from dask_dgpu.batches.call import BatchCall, Request

Blocks = Iterable[tuple[Region, Any]]
Spans = tuple[Span, ...]

SHARE = 0.5
"""Most of the available memory that a temporary array may take."""
PIECE = 1 << 16
"""Bytes that are added at a time: temporaries of whole blocks would need as much memory again."""
LARGE = 16 << 20
"""Bytes of a copy that threads share."""


def check_out(out: Any, shape: Shape) -> None:
    """Raise unless a result of a shape can be written to ``out``."""
    needed = ("shape", "dtype", "__setitem__")
    if isinstance(out, (Array, *REFUSED)) or not all(hasattr(out, each) for each in needed):
        expected("out", "a writable NumPy, zarr or HDF5 array", out, TypeError)
    if tuple(out.shape) != shape:
        raise ValueError(f"expected out of shape {shape}, got {tuple(out.shape)}")
    flags, file = (getattr(out, name, None) for name in ("flags", "file"))
    writable = getattr(flags, "writeable", True) and not getattr(out, "read_only", False)
    if not writable or getattr(file, "mode", None) == "r":
        raise ValueError("expected out to be writable, got a read-only array")


def check_no_overlap(written: Mapping[str, Any], read: Mapping[str, Any]) -> None:
    """Raise if written arrays may share memory with others; names are of arguments.

    NumPy arrays are compared by the bounds of their memory, arrays of zarr and HDF5 by path and
    name, other objects by identity.
    """
    spaces: defaultdict[Any, list[tuple[int, int, str, bool]]] = defaultdict(list)
    for arguments, is_written in ((written, True), (read, False)):
        for name, array in arguments.items():
            span = byte_bounds(array) if isinstance(array, np.ndarray) else (0, 1)
            spaces[_space(array)].append((*span, name, is_written))
    for names in spaces.values():
        names.sort(key=itemgetter(0))
        for i, (_, stop, name, is_written) in enumerate(names, 1):
            for start, _, other, is_other_written in names[i:]:
                if start >= stop:
                    break
                if is_written or is_other_written:
                    out, with_ = (other, name) if is_other_written else (name, other)
                    what = f"{out} not to share memory with {with_}"
                    raise ValueError(f"expected {what}, got an overlap")


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


def temporary(shape: Shape, dtype: np.dtype[Any]) -> Any:
    """Return an array of any content, in a file if it would take most of the memory.

    The file has no name, so nothing is left of it even if this process is killed.
    """
    nbytes = prod(shape) * dtype.itemsize
    if nbytes <= SHARE * psutil.virtual_memory().available:
        return np.empty(shape, dtype)
    folder = dask.config.get("temporary-directory", None) or tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if nbytes > free:
        raise DgpuError(
            f"expected {format_bytes(nbytes)} for a result between passes in Dask's "
            f"temporary-directory {folder}, got {format_bytes(free)} of free space"
        )
    with tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, nbytes)  # a full disk would kill this process later
        return np.memmap(file, dtype, "r+", shape=shape)


def selected(request: Request, out: Any) -> Any:
    """Return ``out``, or what writes only the elements that a ufunc's ``where`` selects."""
    where = request.options.get("where", True) if request.operation.ufunc is not None else True
    if where is True:
        return out
    if isinstance(where, Slot):
        return _Selected(out, request.operands[where.at])
    mask = np.asarray(where, bool)
    return _Selected(out, Operand("where", mask, mask.shape, mask.dtype))


@dataclass(frozen=True)
class _Selected:
    """Writes parts of an array where a mask, broadcast to its shape, is true."""

    out: Any
    mask: Operand

    def __setitem__(self, region: Region, block: Any) -> None:
        shape = self.mask.shape
        along = zip(region[len(region) - len(shape) :], shape, strict=True)
        where = self.mask.read([(0, 1) if n == 1 else (at.start, at.stop) for at, n in along])
        where = where.compute() if isinstance(where, Array) else where
        part = np.array(self.out[region])
        np.copyto(part, block, where=where, casting="unsafe")
        self.out[region] = part


class Sink:
    """Writes the parts of a call's result.

    The result is ``in_place`` if the call reads ``out``: then it ``is_writing`` as soon as blocks
    may arrive there, for a part that is half written cannot be computed again.
    """

    def __init__(self, call: BatchCall, out: Any, *, in_place: bool) -> None:
        self.notation, self.shape, self.dtype = call.notation, call.shape, call.dtype
        self.out = out
        self.written: set[Spans] = set()
        self.is_writing = False
        self._in_place = in_place

    def room(self, tile: Tile) -> Room | None:
        """Return what gives the place of each block of a part, if ``out`` is in memory."""
        if not isinstance(self.out, np.ndarray):
            return None
        spans = self.notation.write_spans(self.shape, tile)

        def place(region: Region) -> Any:
            self.is_writing = self._in_place
            return self.out[(*_place(spans, region), ...)]  # also without axes

        return place

    def write(self, tile: Tile, blocks: Blocks) -> None:
        """Write a part."""
        spans = self.notation.write_spans(self.shape, tile)
        self.is_writing = True
        for region, block in blocks:
            _put(self.out, _place(spans, region), block)
        self.written.add(spans)
        self.is_writing = False


def _place(spans: Spans, region: Region) -> Region:
    """Return where a block of a part of the result is in all of it."""
    return tuple(
        slice(lo + part.start, lo + part.stop) for (lo, _), part in zip(spans, region, strict=True)
    )


def _put(out: Any, place: Region, block: Any) -> None:
    """Write a block, unless it is there."""
    if not (isinstance(out, np.ndarray) and isinstance(block, np.ndarray)):
        out[place] = block
        return
    target: Any = out[(*place, ...)]  # type: ignore[arg-type]
    if target.ctypes.data != block.ctypes.data:
        copy(target, block)


def copy(target: Any, source: Any) -> None:
    """Copy an array to one of its shape; threads share large copies."""
    if source.nbytes < LARGE:
        target[...] = source
        return
    parts = (np.array_split(each, THREADS) for each in (target, source))
    with ThreadPoolExecutor(THREADS, "dgpu-copy") as threads:
        list(threads.map(partial(np.copyto, casting="unsafe"), *parts))


class Sum:
    """Partial results of a reduction, combined.

    Sums of floating-point numbers keep the rounding errors of additions, and half precision is
    added in single.
    """

    def __init__(self, shape: Shape, dtype: np.dtype[Any], combine: str) -> None:
        self.dtype = dtype
        self.combine = combine
        wide = np.dtype("float32") if dtype.itemsize == 2 and is_inexact(dtype) else dtype
        self.total, self.errors = np.zeros(shape, wide), np.zeros(shape, wide)
        self._has_values = False

    def add(self, blocks: Blocks, weight: float) -> None:
        """Add the blocks of a partial result, which has ``weight`` in a mean."""
        for region, block in blocks:
            place: Any = (*region, ...)  # a view, also of an array without axes
            total, errors, values = self.total[place], self.errors[place], np.asarray(block)
            for part in pieces(total.shape, total.itemsize, PIECE):
                self._add(total[part], errors[part], values[part], weight)
        self._has_values = True

    def _add(self, total: Any, errors: Any, values: Any, weight: float) -> None:
        """Combine values with a total in place; ``errors`` get what rounding loses (two-sum)."""
        new = values.astype(total.dtype, copy=False)
        with np.errstate(invalid="ignore", over="ignore"):
            if self.combine in ("max", "min"):
                choose = np.maximum if self.combine == "max" else np.minimum
                total[...] = choose(total, new) if self._has_values else new
                return
            new = new * weight if self.combine == "mean" else new
            added = total + new
            other = added - total
            errors += (total - (added - other)) + (new - other)
            total[...] = added

    def value(self) -> Any:
        """Return the result, once."""
        if self.combine in ("add", "mean"):
            with np.errstate(invalid="ignore", over="ignore"):
                np.add(self.total, self.errors, out=self.errors)
            np.copyto(self.total, self.errors, where=np.isfinite(self.errors))
        return self.total.astype(self.dtype, copy=False)
