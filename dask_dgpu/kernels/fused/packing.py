"""How launches are written for the driver: heads of kernels, and the bytes of arguments.

The driver copies the arguments of a launch. Those of a launch for many blocks have a table of all
their arrays, so nothing is copied to the device before::

    fused(const float* in, float* out, int size)                   one block
    fused_many({{in of each block}, {out of each block}}, size)    many, a layer of the grid each
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from dask_dgpu.kernels.fused.kernel import Entry, Launch

MOST_BLOCKS = 32
"""Most blocks of one launch."""

TABLE_BYTES = 3584
"""Most bytes of the table of arrays; kernels may have 4096 bytes of arguments."""

ADDRESS_BYTES = 8

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


def one_source(launch: Launch) -> str:
    """Return the source of kernels for one block."""
    return HEAD + launch.source


def many_source(launch: Launch) -> str:
    """Return the source of kernels for up to :func:`most_blocks` blocks."""
    entries = [launch.entry] if launch.fold is None else [launch.entry, launch.fold.entry]
    head = HEAD_MANY % {"most": most_blocks(launch.arrays)}
    return head + launch.source + "".join(map(_many, entries))


def most_blocks(arrays: int) -> int:
    """Return how many blocks of so many arrays fit in a table."""
    return min(MOST_BLOCKS, TABLE_BYTES // (ADDRESS_BYTES * arrays))


def _many(entry: Entry) -> str:
    """Return a kernel in which each layer of the grid has a block of its own."""
    declared = entry.signature.split(", ")
    arrays = [text for text in declared if "*" in text]
    kinds = [text[: text.index("*") + 1] for text in arrays]
    numbers = declared[len(arrays) :]
    arguments = [f"({kind}) table.at[{at}][blockIdx.z]" for at, kind in enumerate(kinds)]
    arguments += [text.rsplit(" ", 1)[1] for text in numbers]
    return ENTRY_MANY % {
        "bounds": entry.bounds,
        "name": entry.name,
        "arrays": len(arrays),
        "numbers": "".join(f", {text}" for text in numbers),
        "arguments": ", ".join(arguments),
    }


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
