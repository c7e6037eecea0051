"""Host arrays that calls read and write: NumPy, memory maps, zarr, HDF5, and Dask arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any
from uuid import uuid4

import dask.array as da
import numpy as np
from dask.array.core import Array

from dask_dgpu.arguments import check_chunk_sizes, expected
from dask_dgpu.batches import stored
from dask_dgpu.batches.notation import Span
from dask_dgpu.batches.overlaps import check_no_overlap
from dask_dgpu.batches.rules import Shape, Slot
from graph_opt.model.layout import is_bfloat16

REFUSED = (np.ma.MaskedArray, np.matrix)
"""Arrays whose parts, as plain arrays, mean something else."""


@dataclass(frozen=True)
class Operand:
    """An array argument, as a source of its parts in the machine's byte order."""

    name: str
    source: Any
    shape: Shape
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return prod(self.shape) * self.dtype.itemsize

    def bytes_beside(self, shape: Sequence[int]) -> int:
        """Return the bytes that a read of a part of this shape takes beside the part."""
        if isinstance(self.source, Array):
            return 0
        return stored.bytes_beside(self.source, shape, self.dtype)

    def __str__(self) -> str:
        """Shape and dtype."""
        return f"{self.shape} {self.dtype}"

    def lazy(self, chunks: tuple[tuple[int, ...], ...]) -> Array:
        """Return the array as a Dask array whose tasks read one block each."""
        return da.map_blocks(_read_block, chunks=chunks, dtype=self.dtype, operand=_Held(self))

    def read(self, spans: Sequence[Span]) -> Any:
        """Return a part, a NumPy array or a lazy Dask array.

        Spans that go beyond an axis continue at its other end.
        """
        for axis, ((lo, hi), size) in enumerate(zip(spans, self.shape, strict=True)):
            if lo < 0 or hi > size:
                parts = [
                    self.read([*spans[:axis], part, *spans[axis + 1 :]])
                    for part in _wrapped(lo, hi, size)
                ]
                join = da.concatenate if isinstance(self.source, Array) else np.concatenate
                return join(parts, axis=axis)
        part = self.source[tuple(slice(lo, hi) for lo, hi in spans)]
        if isinstance(part, np.memmap):
            part = np.array(part, self.dtype)  # read now, not when it is computed
        elif not isinstance(part, Array):
            part = np.asarray(part)
        return part if part.dtype == self.dtype else part.astype(self.dtype)


@dataclass(frozen=True)
class _Held:
    """Hides an operand from Dask, which would copy or hash its array.

    Each graph has names of its own: the array may change between two calls.
    """

    operand: Operand

    def __dask_tokenize__(self) -> str:
        return uuid4().hex


def _read_block(operand: _Held, block_info: Any = None) -> Any:
    return operand.operand.read(block_info[None]["array-location"])


def _wrapped(lo: int, hi: int, size: int) -> Iterator[Span]:
    """Yield the pieces of a periodic span, each within the axis."""
    while lo < hi:
        start = lo % size
        stop = min(size, start + hi - lo)
        yield start, stop
        lo += stop - start


@dataclass(frozen=True)
class Described:
    """An array of which only shape and dtype are known, for plans."""

    shape: Shape
    dtype: np.dtype[Any]

    def __getitem__(self, key: tuple[slice, ...]) -> Any:
        lengths = (len(range(*each.indices(n))) for each, n in zip(key, self.shape, strict=True))
        return np.zeros(tuple(lengths), self.dtype)


def is_operand(value: Any) -> bool:
    """Whether an argument is an array with axes."""
    shape = getattr(value, "shape", None)
    return isinstance(shape, tuple) and len(shape) > 0 and hasattr(value, "dtype")


def numbers(name: str, dtype: Any) -> np.dtype[Any]:
    """Return the dtype of an argument; raise unless it is one of numbers or dates."""
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = None
    if found is None or (found.kind not in "biufcmM" and not is_bfloat16(found)):
        raise TypeError(f"expected {name} to be of numbers, got {dtype}")
    return found


def operand(name: str, value: Any) -> Operand:
    """Return an array argument; raise for arrays that parts would change."""
    what = "a NumPy, zarr, HDF5 or Dask array"
    if isinstance(value, REFUSED) or hasattr(value, "__cuda_array_interface__"):
        expected(name, what, value, TypeError)
    dtype = numbers(name, value.dtype)
    if isinstance(value, Array):
        check_chunk_sizes(name, value)
        if not isinstance(value._meta, np.ndarray) or isinstance(value._meta, REFUSED):
            from dask_dgpu.arguments import check_container

            check_container(name, value)
    shape = tuple(int(size) for size in value.shape)
    return Operand(name, value, shape, dtype.newbyteorder("="))


@dataclass(frozen=True)
class Template:
    """The arguments of a call, with a :class:`Slot` for each array."""

    args: tuple[Any, ...]
    options: Mapping[str, Any]
    operands: tuple[Operand, ...]

    @classmethod
    def of(
        cls,
        args: Sequence[Any],
        options: Mapping[str, Any],
        make: Callable[[str, Any], Operand | None],
    ) -> Template:
        """Return the template; ``make`` returns an operand for arguments that are one."""
        operands: list[Operand] = []

        def slot(name: str, value: Any) -> Any:
            found = make(name, value)
            if found is None:
                return value
            operands.append(found)
            return Slot(len(operands) - 1)

        positional = tuple(slot(f"arrays[{at}]", value) for at, value in enumerate(args))
        named = {name: slot(name, value) for name, value in options.items()}
        return cls(positional, named, tuple(operands))

    @property
    def values(self) -> dict[str, Any]:
        """All arguments by name, with the operands' arrays."""
        named = {f"arrays[{at}]": value for at, value in enumerate(self.args)} | dict(self.options)
        return {
            name: self.operands[value.at].source if isinstance(value, Slot) else value
            for name, value in named.items()
        }

    def call(self, function: Callable[..., Any], arrays: Sequence[Any]) -> Any:
        """Call a function with these arrays in place of the operands."""

        def filled(value: Any) -> Any:
            return arrays[value.at] if isinstance(value, Slot) else value

        options = {name: filled(value) for name, value in self.options.items()}
        return function(*map(filled, self.args), **options)


def check_out(
    out: Any,
    shape: Shape,
    dtype: np.dtype[Any],
    read: Mapping[str, Any],
    casting: Callable[[Any], Any],
) -> None:
    """Raise unless a result can be written to ``out`` while arguments are read.

    ``casting(out)`` returns which casts are allowed.
    """
    needed = ("shape", "dtype", "__setitem__")
    if isinstance(out, (Array, *REFUSED)) or not all(hasattr(out, each) for each in needed):
        expected("out", "a writable NumPy, zarr or HDF5 array", out, TypeError)
    if tuple(out.shape) != shape:
        raise ValueError(f"expected out of shape {shape}, got {tuple(out.shape)}")
    if not np.can_cast(dtype, out.dtype, casting(out)):
        raise TypeError(f"expected out of a dtype that can hold {dtype}, got {out.dtype}")
    if _is_read_only(out):
        raise ValueError("expected out to be writable, got a read-only array")
    check_no_overlap({"out": out}, read)


def _is_read_only(out: Any) -> bool:
    """Whether a NumPy array, zarr array or HDF5 dataset refuses to be written."""
    flags, file = (getattr(out, name, None) for name in ("flags", "file"))
    writeable = getattr(flags, "writeable", True)
    return bool(not writeable or getattr(out, "read_only", False)) or (
        getattr(file, "mode", None) == "r"
    )
