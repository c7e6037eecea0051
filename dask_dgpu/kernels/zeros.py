"""Matrices without their zeros: which elements have a bit set, and their values.

::

    | one bit an element, or uint32 positions | padding | values |      whichever is smaller

An element is left out if all its bits are zero. So -0.0 and NaN stay, and unpacking restores every
bit. The same array operations run on NumPy and on CuPy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

Array = Any

PART = 1 << 18
"""Elements to convert at a time on a host, so that temporaries stay in a cache."""

DEVICE_PART = 1 << 26
"""The same on a GPU, where launches cost more than memory."""

ALIGN = 16
"""Values start at a multiple of this, in bytes; views of any dtype are aligned."""


def count(values: Array) -> Any:
    """Return the count of elements with a bit set, ``~count`` if some are NaN or infinite.

    On a GPU the result is an array without axes, so the host need not wait.
    """
    zeros = np.count_nonzero(_marked(values))
    if values.dtype.kind in "biu":
        return zeros
    finite = np.count_nonzero(np.isfinite(values))  # CuPy compiles one reduction for both
    return zeros ^ (-1 * (finite != values.size))  # -1 has all bits set


def packed_bytes(elements: int, nonzeros: int, itemsize: int) -> int:
    """Return the bytes of a packed matrix; 0 if it has only zeros."""
    places = min(_bitmap_bytes(elements), _position_bytes(elements, nonzeros))
    return _padded(places) + nonzeros * itemsize if nonzeros else 0


def pack(values: Array, message: Array, nonzeros: int) -> None:
    """Pack a matrix with this many elements that have a bit set.

    Parameters
    ----------
    values : array
        Of shape (m, n), any strides.
    message : array
        Output, uint8 of :func:`packed_bytes` elements.
    nonzeros : int
        As :func:`count` says.
    """
    if not nonzeros:
        return
    by_bit, places, packed = _parts(message, values.size, nonzeros, values.dtype)
    start = 0
    for rows, first in slabs(values):
        marked = _marked(values[rows]).reshape(-1)
        where = np.flatnonzero(marked)
        stop = start + len(where)
        if by_bit:
            bits = np.packbits(marked)
            places[first // 8 : first // 8 + len(bits)] = bits
        else:
            places[start:stop] = where + first
        packed[start:stop] = values[rows].reshape(-1)[where]
        start = stop


def unpack(message: Array, nonzeros: int, dtype: Any, out: Array) -> None:
    """Write the matrix of ``dtype`` in a message of :func:`pack` to ``out``, of any dtype."""
    if not nonzeros:
        out[...] = 0
        return
    by_bit, places, packed = _parts(message, out.size, nonzeros, np.dtype(dtype))
    if not by_bit:
        positions, width = places.astype(np.int64), out.shape[1]
        out[...] = 0
        out[positions // width, positions % width] = packed.astype(out.dtype, copy=False)
        return
    start = 0
    for rows, first in slabs(out):
        part = out[rows]
        bits = places[first // 8 : -(-(first + part.size) // 8)]
        where = np.flatnonzero(np.unpackbits(bits)[: part.size].view(bool))
        flat = np.zeros_like(packed, shape=(part.size,))
        flat[where] = packed[start : start + len(where)]
        part[...] = flat.reshape(part.shape)
        start += len(where)


def _marked(values: Array) -> Array:
    """Return which elements have a bit set."""
    if values.dtype.kind == "c":
        return _marked(values.real) | _marked(values.imag)
    return values.view(f"u{values.itemsize}") != 0


def slabs(values: Array) -> Iterator[tuple[slice, int]]:
    """Yield slabs of rows, and the number of elements before each, a multiple of 8."""
    rows, width = values.shape
    most = PART if isinstance(values, np.ndarray) else DEVICE_PART
    step = max(1, most // max(1, 8 * width)) * 8
    for top in range(0, rows, step):
        yield slice(top, top + step), top * width


def _parts(
    message: Array, elements: int, nonzeros: int, dtype: np.dtype[Any]
) -> tuple[bool, Array, Array]:
    """Return whether a message has a bit for each element, its bits or positions, its values."""
    bitmap, positions = _bitmap_bytes(elements), _position_bytes(elements, nonzeros)
    by_bit, size = bitmap <= positions, min(bitmap, positions)
    places = message[:size] if by_bit else message[:size].view(np.uint32)
    start = _padded(size)
    return by_bit, places, message[start : start + nonzeros * dtype.itemsize].view(dtype)


def _bitmap_bytes(elements: int) -> int:
    return -(-elements // 8)


def _position_bytes(elements: int, nonzeros: int) -> int:
    return (4 if elements <= 1 << 32 else 8 * elements) * nonzeros  # else the bitmap is smaller


def _padded(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN
