"""How pieces of an operand travel in messages: as they are, in half precision, or without zeros.

A piece in half precision has one exponent for each row of A, or for each column of B::

    | row 0 | row 1 | ... | row m | e0 e1 ... em |      2 bytes an element, 2 bytes an exponent

So each element is rounded relative to the largest of its row of A, or column of B, and an element
of the product has an error relative to the norms of its row and its column.

Zeros are counted before the first step. Then both ends of a message know its form (``zeros.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import numpy as np

from dask_dgpu.algorithms import Array
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels import half, zeros
from dask_dgpu.kernels.device import Device
from graph_opt.model.cost import Machine

WireDtype = Literal["exact", "float16", "bfloat16"]
SparseThreshold = float | Literal["auto"] | None
WIRE_DTYPES: tuple[WireDtype, ...] = get_args(WireDtype)

ENCODED = ("float32", "float64")
"""The dtypes of operands that can travel in half precision."""

ALWAYS = 1.0
"""The density below which every piece with zeros is packed."""


@dataclass(frozen=True)
class Exact:
    """Pieces of an operand travel as they are."""

    @property
    def passes(self) -> int:
        """Passes over a message, to convert it on both ends."""
        return 0

    def element_bytes(self, itemsize: int) -> int:
        """Return the bytes of an element of an operand with this ``itemsize``."""
        return itemsize

    def piece_bytes(self, heights: Any, widths: Any, itemsize: int) -> Any:
        """Return the bytes of pieces of these heights and widths."""
        return heights * widths * itemsize

    @property
    def form(self) -> Form | None:
        """The form of each piece, ``None`` if it travels as it is, or if no rank knows it yet."""
        return None


@dataclass(frozen=True)
class Half(Exact):
    """Pieces travel in half precision, with an exponent for each index along ``axis``."""

    dtype: str
    axis: int

    @property
    def passes(self) -> int:
        return 24

    @property
    def eps(self) -> float:
        """The distance from 1 to the next number; rounding changes at most half of it."""
        return half.FORMATS[self.dtype].eps

    def element_bytes(self, itemsize: int) -> int:
        return 2

    def piece_bytes(self, heights: Any, widths: Any, itemsize: int) -> Any:
        return 2 * (heights * widths + (widths if self.axis else heights))

    @property
    def form(self) -> Half:
        return self

    def encode(self, values: Array, message: Array) -> Any:
        """Write a piece to its message; return how many elements lost precision beyond rounding."""
        bits, exponents = self._parts(message, values.shape)
        return half.narrow(self._lines(values), bits, exponents, self.dtype)

    def decode(self, message: Array, dtype: str, out: Array) -> None:
        """Read a piece of an operand of ``dtype`` from a message."""
        half.widen(*self._parts(message, out.shape), self._lines(out), self.dtype)

    def _parts(self, message: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """Return the lines of bits, and the exponents, of a message."""
        size = 2 * shape[0] * shape[1]
        bits = message[:size].view(np.uint16).reshape(shape)
        return self._lines(bits), message[size:].view(np.int16)

    def _lines(self, piece: Array) -> Array:
        return piece.T if self.axis else piece


@dataclass(frozen=True)
class Sparse(Exact):
    """Pieces travel without their zeros if this makes them smaller; in plans as they are.

    A piece is packed if fewer than ``threshold`` of its elements have a bit set, and if packing
    saves more than ``saving`` of its bytes.
    """

    threshold: float = ALWAYS
    saving: float = 0.0

    @property
    def passes(self) -> int:
        return COUNTING

    @property
    def skips(self) -> bool:
        """Whether panels are divided so that empty blocks can be skipped; this may cost time."""
        return not self.saving

    def chosen(self, elements: int, nonzeros: int, itemsize: int) -> tuple[Packed | None, int]:
        """Return the form of a piece, the same on both ends of a message, and its bytes."""
        nbytes = zeros.packed_bytes(elements, nonzeros, itemsize)
        below = nonzeros < self.threshold * elements
        if below and nbytes < (1 - self.saving) * elements * itemsize:
            return Packed(nonzeros), nbytes
        return None, elements * itemsize


@dataclass(frozen=True)
class Packed:
    """A piece without its zeros; ``nonzeros`` of its elements have a bit set."""

    nonzeros: int

    def encode(self, values: Array, message: Array) -> Any:
        zeros.pack(values, message, self.nonzeros)
        return 0

    def decode(self, message: Array, dtype: str, out: Array) -> None:
        zeros.unpack(message, self.nonzeros, dtype, out)


Form = Half | Packed
"""The form of a piece that does not travel as it is."""

COUNTING = 4
"""Passes over an operand to count its zeros."""

PACKING = 24
"""Passes over a piece to pack and unpack it; fewer the fewer elements are not zero."""

EXACT = Exact()


@dataclass
class Sent:
    """Pieces that were sent: their bytes, those as they are, and elements that lost precision.

    These are too small for the relative precision of rounding. ``empty`` pieces had only zeros and
    did not travel, and ``skipped`` products would have added only zeros.
    """

    nbytes: int = 0
    exact_bytes: int = 0
    lost: Any = 0
    empty: int = 0
    skipped: int = 0

    def add(self, values: Array, message: Array, lost: Any) -> None:
        """Add a piece and its message."""
        self.nbytes += message.nbytes
        self.exact_bytes += values.nbytes
        self.lost = self.lost + lost
        self.empty += not message.nbytes

    def total(self, comm: Comm, device: Device) -> Sent:
        """Return the sums over all ranks; collective."""
        with device.transferring():
            counts = device.zeros(len(fields(self)), "int64")
            for i, field in enumerate(fields(self)):
                counts[i] = getattr(self, field.name)
            comm.all_reduce(counts).wait()
        device.synchronize()
        return Sent(*device.to_host(counts).tolist())


def encoding(
    wire_dtype: WireDtype,
    axis: int,
    sparse_threshold: SparseThreshold = None,
    machine: Machine | None = None,
) -> Exact:
    """Return the encoding of the left operand, ``axis`` 0, or the right one.

    ``"auto"`` leaves zeros out on a ``machine`` on which this saves time: its network is slow
    compared with its memory, and ranks cannot read each other's memory.
    """
    if sparse_threshold == "auto":
        if machine is None or machine.one_sided:
            return EXACT
        saving = PACKING * machine.bandwidth / machine.memory_bandwidth
        return Sparse(ALWAYS, saving) if saving < 1 else EXACT
    if sparse_threshold is not None:
        return Sparse(sparse_threshold)
    return EXACT if wire_dtype == "exact" else Half(wire_dtype, axis)
