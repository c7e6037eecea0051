"""How pieces of an operand travel in messages: as they are, or in half precision.

A piece in half precision has one exponent for each row of A, or for each column of B::

    | row 0 | row 1 | ... | row m | e0 e1 ... em |      2 bytes an element, 2 bytes an exponent

So each element is rounded relative to the largest of its row of A, or column of B, and an element
of the product has an error relative to the norms of its row and its column.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import numpy as np

from dask_dgpu.algorithms import Array
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels import half
from dask_dgpu.kernels.device import Device

WireDtype = Literal["exact", "float16", "bfloat16"]
WIRE_DTYPES: tuple[WireDtype, ...] = get_args(WireDtype)

ENCODED = ("float32", "float64")
"""The dtypes of operands that can travel in half precision."""


class Encoding(Protocol):
    """The form of an operand's pieces in messages."""

    def element_bytes(self, itemsize: int) -> int:
        """Return the bytes of an element of an operand with this ``itemsize``."""

    def piece_bytes(self, heights: Any, widths: Any, itemsize: int) -> Any:
        """Return the bytes of pieces of these heights and widths."""

    def encode(self, values: Array, message: Array) -> Any:
        """Write a piece to its bytes in a message; return how many elements lost precision.

        That is more than rounding changes. The count may be an array without axes.
        """

    def decode(self, message: Array, dtype: str, out: Array) -> None:
        """Read a piece of an operand of ``dtype`` from a message."""


@dataclass(frozen=True)
class Exact:
    """Pieces travel as they are."""

    def element_bytes(self, itemsize: int) -> int:
        return itemsize

    def piece_bytes(self, heights: Any, widths: Any, itemsize: int) -> Any:
        return heights * widths * itemsize

    def encode(self, values: Array, message: Array) -> Any:
        message.view(values.dtype).reshape(values.shape)[...] = values
        return 0

    def decode(self, message: Array, dtype: str, out: Array) -> None:
        out[...] = message.view(np.dtype(dtype)).reshape(out.shape)


@dataclass(frozen=True)
class Half:
    """Pieces travel in half precision, with an exponent for each index along ``axis``."""

    dtype: str
    axis: int

    @property
    def eps(self) -> float:
        """The distance from 1 to the next number; rounding changes at most half of it."""
        return half.FORMATS[self.dtype].eps

    def element_bytes(self, itemsize: int) -> int:
        return 2

    def piece_bytes(self, heights: Any, widths: Any, itemsize: int) -> Any:
        return 2 * (heights * widths + (widths if self.axis else heights))

    def encode(self, values: Array, message: Array) -> Any:
        bits, exponents = self._parts(message, values.shape)
        return half.narrow(self._lines(values), bits, exponents, self.dtype)

    def decode(self, message: Array, dtype: str, out: Array) -> None:
        half.widen(*self._parts(message, out.shape), self._lines(out), self.dtype)

    def _parts(self, message: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """Return the lines of bits, and the exponents, of a message."""
        size = 2 * shape[0] * shape[1]
        bits = message[:size].view(np.uint16).reshape(shape)
        return self._lines(bits), message[size:].view(np.int16)

    def _lines(self, piece: Array) -> Array:
        return piece.T if self.axis else piece


EXACT = Exact()


@dataclass
class Sent:
    """Pieces that were sent: their bytes, those as they are, and elements that lost precision.

    These are too small for the relative precision of rounding.
    """

    nbytes: int = 0
    exact_bytes: int = 0
    lost: Any = 0

    def add(self, values: Array, message: Array, lost: Any) -> None:
        """Add a piece and its message."""
        self.nbytes += message.nbytes
        self.exact_bytes += values.nbytes
        self.lost = self.lost + lost

    def total(self, comm: Comm, device: Device) -> Sent:
        """Return the sums over all ranks; collective."""
        with device.transferring():
            counts = device.zeros(3, "int64")
            for at, count in enumerate((self.nbytes, self.exact_bytes, self.lost)):
                counts[at] = count
            comm.all_reduce(counts).wait()
        device.synchronize()
        return Sent(*device.to_host(counts).tolist())


def encoding(wire_dtype: WireDtype, axis: int) -> Encoding:
    """Return the encoding of the left operand, ``axis`` 0, or the right one."""
    return EXACT if wire_dtype == "exact" else Half(wire_dtype, axis)
