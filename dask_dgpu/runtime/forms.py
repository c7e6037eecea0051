"""The forms of blocks that are known before they are computed, and their messages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dask_dgpu.comm.common import contiguous
from dask_dgpu.errors import UndeclaredTypeError
from dask_dgpu.kernels.device import Device
from dask_dgpu.kernels.sums.compensated import Pair
from dask_dgpu.kernels.sums.partial import Partial
from dask_dgpu.operations.value import conforming
from graph_opt.model.layout import NUMPY

ALIGNED = 16
"""Bytes to which arrays in a message are aligned."""


class Form(NamedTuple):
    """A block as the graph declares it."""

    dtype: str
    shape: tuple[int, ...]
    container: str

    def packed(self, block: Any, name: str, device: Device) -> Any:
        """Return a block of an array, by its name, as one array; raise if it is not as declared."""
        return contiguous(conforming(block, name, *self))

    def awaited(self, device: Device) -> tuple[Any, Any]:
        """Return a block that has still to be received, and the array to receive."""
        block = device.empty(self.shape, self.dtype)
        return block, block


class Parts(NamedTuple):
    """The part of a reduction of one block: arrays with their keys, dtypes and shapes.

    It is a dictionary of these, or the partial sums of a compensated sum if it is ``summed``.
    """

    arrays: tuple[tuple[str, str, tuple[int, ...]], ...]
    container: str
    summed: bool = False

    def packed(self, block: Any, name: str, device: Device) -> Any:
        """Return a block as one array of bytes; raise if it is not as declared."""
        message = device.empty(self.nbytes, "uint8")
        found, views = self._taken(block, name), self._views(message)
        for key, dtype, shape in self.arrays:
            array = found[key]
            if shape:
                array = conforming(array, name, dtype, shape, self.container)
            views[key][...] = array
        return message

    def awaited(self, device: Device) -> tuple[Any, Any]:
        """Return a block that has still to be received, and the bytes to receive."""
        message = device.empty(self.nbytes, "uint8")
        arrays = self._views(message)
        if not self.summed:
            return arrays, message
        *sums, count = arrays.values()
        return Partial(Pair.of(sums), count, self.container, 1), message

    @property
    def nbytes(self) -> int:
        """The bytes of a message with all arrays."""
        return sum(map(_padded, self.arrays))

    def _taken(self, block: Any, name: str) -> Mapping[str, Any]:
        """Return the arrays of a block, or raise."""
        keys, found = [key for key, _, _ in self.arrays], block
        if self.summed and isinstance(block, Partial) and isinstance(block.sums, Pair):
            arrays = *block.sums.arrays(), block.count
            found = dict(zip(keys, arrays, strict=True)) if len(keys) == len(arrays) else None
        if type(found) is not dict or found.keys() != {*keys}:
            kind = type(block).__name__
            raise UndeclaredTypeError(f"expected a block of {name} with {keys}, got a {kind}")
        return found

    def _views(self, message: Any) -> dict[str, Any]:
        """Return the arrays in the memory of a message, by their keys."""
        found, start = {}, 0
        for key, dtype, shape in self.arrays:
            nbytes = math.prod(shape) * np.dtype(dtype).itemsize
            found[key] = message[start : start + nbytes].view(dtype).reshape(shape)
            start += _padded((key, dtype, shape))
        return found


class Fields(NamedTuple):
    """The part of a reduction of one block of NumPy: an array with fields, with their dtypes."""

    fields: tuple[tuple[str, str], ...]
    shape: tuple[int, ...]
    container: str = NUMPY

    def packed(self, block: Any, name: str, device: Device) -> Any:
        """Return a block as bytes; raise if it is not as declared."""
        if type(block) is not np.ndarray or block.dtype != self.dtype or block.shape != self.shape:
            kind = getattr(block, "dtype", type(block).__name__)
            wanted = f"expected a block of {name} with {self.dtype} of {self.shape}"
            raise UndeclaredTypeError(f"{wanted}, got {kind} of {np.shape(block)}")
        return contiguous(block).reshape(-1).view(np.uint8)

    def awaited(self, device: Device) -> tuple[Any, Any]:
        """Return a block that has still to be received, and the bytes to receive."""
        block = np.empty(self.shape, self.dtype)
        return block, block.reshape(-1).view(np.uint8)

    @property
    def dtype(self) -> np.dtype[Any]:
        """That of an element."""
        return np.dtype(list(self.fields))


Known = Form | Parts | Fields


def _padded(array: tuple[str, str, tuple[int, ...]]) -> int:
    """Return the bytes of an array in a message, where the next one is aligned."""
    _, dtype, shape = array
    return -(-math.prod(shape) * np.dtype(dtype).itemsize // ALIGNED) * ALIGNED
