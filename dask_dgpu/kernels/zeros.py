"""A compressed form of numbers of which many are zero: the others, and where they are.

::

    numbers     0 0 7 0 0 0 3 0
    message     7 3 | 2 6               values, padded to 4 bytes, and a position of 4 bytes each
                7 3 | 00100010          or a bit for each number, whichever is less

A number is zero if all of its bits are: -0.0 is not. Complex numbers of 16 bytes count as two. The
same array operations run on NumPy and on CuPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any

WIDEST = 8
"""Bytes of the widest number."""

POSITION = np.dtype(np.uint32)


def numbers(size: int, itemsize: int) -> int:
    """Return how many numbers so many elements count as."""
    return size * -(-itemsize // WIDEST)


def count_nonzero(values: Array) -> Any:
    """Return how many numbers of an array are not zero; on a GPU an array without axes."""
    return np.count_nonzero(_numbers(values))


def compressed_bytes(nonzero: int, count: int, itemsize: int) -> int:
    """Return the bytes of the compressed form of ``count`` numbers; those of none are 0."""
    if not nonzero:
        return 0
    return _values_bytes(nonzero, itemsize) + min(*_places_bytes(nonzero, count))


def compress(values: Array, nonzero: int, message: Array) -> None:
    """Write the compressed form of an array with so many numbers that are not zero."""
    flat = _numbers(values)
    used = nonzero * flat.itemsize
    positions = np.flatnonzero(flat)
    message[:used].view(flat.dtype)[...] = flat[positions]
    places = message[_values_bytes(nonzero, flat.itemsize) :]
    if _by_position(nonzero, flat.size):
        places.view(POSITION)[...] = positions
    else:
        places[...] = np.packbits(flat != 0)


def expand(message: Array, nonzero: int, dtype: str, out: Array) -> None:
    """Read the compressed form of an array of ``dtype`` into another."""
    kind = np.dtype(dtype)
    count, unit = numbers(out.size, kind.itemsize), _unit(kind.itemsize)
    places = message[_values_bytes(nonzero, kind.itemsize) :]
    if _by_position(nonzero, count):
        positions = places.view(POSITION)
    else:
        positions = np.flatnonzero(np.unpackbits(places)[:count])
    flat = np.zeros_like(message, unit, shape=count)
    flat[positions] = message[: nonzero * unit.itemsize].view(unit)
    out[...] = flat.view(kind).reshape(out.shape)


def _numbers(values: Array) -> Array:
    """View the numbers of an array as integers of their size, in row-major order."""
    return values.reshape(-1).view(_unit(values.itemsize))


def _unit(itemsize: int) -> np.dtype[Any]:
    return np.dtype(f"u{min(itemsize, WIDEST)}")


def _values_bytes(nonzero: int, itemsize: int) -> int:
    return -(-nonzero * min(itemsize, WIDEST) // POSITION.itemsize) * POSITION.itemsize


def _places_bytes(nonzero: int, count: int) -> tuple[int, int]:
    """Return the bytes of positions, and those of bits."""
    return nonzero * POSITION.itemsize, -(-count // 8)


def _by_position(nonzero: int, count: int) -> bool:
    by_position, by_bit = _places_bytes(nonzero, count)
    return by_position < by_bit
