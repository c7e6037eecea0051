"""Launches of generated kernels, before anything is on a device, and how the driver gets them.

The driver copies the arguments of a launch. Those of a launch for many blocks have a table of all
their arrays, so nothing is copied to the device before::

    fused(const float* in, float* out, int size)                   one block
    fused_many({{in of each block}, {out of each block}}, size)    many, a layer of the grid each
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

THREADS = 256
"""Threads of a thread block."""

MOST_BLOCKS = 32
"""Most blocks of one launch."""

TABLE_BYTES = 3584
"""Most bytes of the table of arrays; kernels may have 4096 bytes of arguments."""

ADDRESS_BYTES = 8


class Array(NamedTuple):
    """What a kernel is told of an array: strides count elements, ``aligned`` is modulo 16."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    aligned: int


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of an array in C order, in elements."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


class Output(NamedTuple):
    """An array that a kernel writes, contiguous in memory: a node's result, perhaps transposed."""

    node: int
    dtype: np.dtype[Any]
    allocated: tuple[int, ...]  # the shape as it lies in memory
    order: tuple[int, ...] | None  # the axes of the result among these; None if they are in order
    shape: tuple[int, ...]  # of the result, which may have more axes of length 1

    def restored(self, array: Any) -> Any:
        """Return the view of the allocated array that has the node's axes."""
        return array if self.order is None else array.transpose(self.order).reshape(self.shape)

    @property
    def array(self) -> Array:
        """The result as later kernels find it."""
        memory = as_strided(np.empty(1, np.int8), self.allocated, contiguous(self.allocated))
        return Array(self.dtype, self.shape, self.restored(memory).strides, 0)


class Entry(NamedTuple):
    """A kernel in a source, and how it is launched: its parameters, and the numbers among these."""

    name: str
    arrays: tuple[str, ...]
    numbers: dict[str, Any]  # values by parameters
    grid: tuple[int, int]
    threads: int = THREADS
    bounds: str = str(THREADS)
    first: int = 0  # of the arrays of the launch

    @property
    def signature(self) -> str:
        """The parameters in C++."""
        return ", ".join((*self.arrays, *self.numbers))

    @property
    def many(self) -> str:
        """A kernel in which each layer of the grid has a block of its own."""
        kinds = [text[: text.index("*") + 1] for text in self.arrays]
        arguments = [f"({kind}) table.at[{i}][blockIdx.z]" for i, kind in enumerate(kinds)]
        arguments += [text.rsplit(" ", 1)[1] for text in self.numbers]
        return ENTRY_MANY % {
            "bounds": self.bounds,
            "name": self.name,
            "arrays": len(kinds),
            "numbers": "".join(f", {text}" for text in self.numbers),
            "arguments": ", ".join(arguments),
        }


class Launch(NamedTuple):
    """Kernels to launch one after the other; they get operands, outputs, a workspace, and numbers.

    ``workspace`` counts bytes and is None for kernels that have none.
    """

    source: str
    entries: tuple[Entry, ...]
    operands: tuple[int, ...]  # nodes
    outputs: tuple[Output, ...]
    workspace: int | None = None

    @property
    def arrays(self) -> int:
        """The number of arguments that are arrays."""
        return len(self.operands) + len(self.outputs) + (self.workspace is not None)

    @property
    def most(self) -> int:
        """The most blocks of one call: the table of their arrays has a largest size."""
        return min(MOST_BLOCKS, TABLE_BYTES // (ADDRESS_BYTES * self.arrays))

    @property
    def one(self) -> str:
        """The source of kernels for one block."""
        return HEAD + self.source

    @property
    def many(self) -> str:
        """The source of kernels for up to ``most`` blocks."""
        head = HEAD_MANY % {"most": self.most}
        return head + self.source + "".join(entry.many for entry in self.entries)


HEAD = '#define KERNEL(...) extern "C" __global__ void __launch_bounds__(__VA_ARGS__)\n'

HEAD_MANY = r"""
#define KERNEL(...) __device__ __forceinline__ void
template <int ARRAYS> struct Table { void* at[ARRAYS][%(most)d]; };
"""

ENTRY_MANY = r"""
extern "C" __global__ void __launch_bounds__(%(bounds)s)
%(name)s_many(const __grid_constant__ Table<%(arrays)d> table%(numbers)s) {
    %(name)s(%(arguments)s);
}
"""


class Packing(NamedTuple):
    """The arguments of a kernel: addresses, then numbers, each at a multiple of its size."""

    packer: struct.Struct
    numbers: bytes

    @classmethod
    def of(cls, addresses: int, numbers: Sequence[Any]) -> Packing:
        """Return the packing of so many addresses and these NumPy scalars."""
        start = addresses * ADDRESS_BYTES
        packed = bytearray()
        for number in numbers:
            packed += bytes(-(start + len(packed)) % number.itemsize) + number.tobytes()
        return cls(struct.Struct(f"={addresses}Q{len(packed)}s"), bytes(packed))

    def write(self, into: Any, addresses: Sequence[int]) -> None:
        """Write the arguments to a buffer."""
        self.packer.pack_into(into, 0, *addresses, self.numbers)
