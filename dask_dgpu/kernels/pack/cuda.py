"""Copies of many pieces by one launch of one kernel, on the current CuPy stream.

The host describes the pieces (``descriptors.py``), writes the table into pinned memory, and sends
it ahead of the kernel on the same stream. Once the tables have reached their size, nothing is
allocated, and the host waits for the GPU only if it is a whole ring of tables ahead.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import cycle
from typing import Any
from weakref import WeakKeyDictionary

import cupy
import numpy as np

from dask_dgpu.kernels.device import Device
from dask_dgpu.kernels.device.recorder import Recorder
from dask_dgpu.kernels.pack import Pieces, copy_host, descriptors
from dask_dgpu.kernels.pack.descriptors import Table, describe

THREADS = 256
"""Threads of a thread block; each copies TILE / THREADS words."""

MACROS = (
    *("TARGET", "SOURCE", "WIDTH", "NDIM", "WORDS", "LENGTHS", "TARGET_STRIDES"),
    *("SOURCE_STRIDES", "COLUMNS", "TILE"),
)
"""Constants of the kernel."""

RING = 8
"""Concurrent tables; a round of an exchange takes two."""

SOURCE = r"""
typedef long long Long;

template <typename Word>
__device__ void copy_words(const Long* piece, Long first) {
    char* __restrict__ target = (char*) piece[TARGET];
    const char* __restrict__ source = (const char*) piece[SOURCE];
    const int outermost = (int) piece[NDIM] - 1;
    const unsigned stop = (unsigned) min(first + TILE, piece[WORDS]);
    #pragma unroll 4
    for (unsigned word = (unsigned) first + threadIdx.x; word < stop; word += THREADS) {
        unsigned rest = word;  // 64-bit divisions are slow, and take seconds to compile
        Long to = 0, from = 0;
        for (int axis = 0; axis < outermost; ++axis) {
            const unsigned length = (unsigned) piece[LENGTHS + axis];
            const unsigned next = rest / length;
            const Long along = rest - next * length;
            to += along * piece[TARGET_STRIDES + axis];
            from += along * piece[SOURCE_STRIDES + axis];
            rest = next;
        }
        to += (Long) rest * piece[TARGET_STRIDES + outermost];
        from += (Long) rest * piece[SOURCE_STRIDES + outermost];
        *(Word*) (target + to) = *(const Word*) (source + from);
    }
}

// tiles[k] is the first tile of piece k, tiles[pieces] the number of all.
extern "C" __global__ void __launch_bounds__(THREADS)
copy_pieces(const Long* table, const Long* tiles, int pieces) {
    __shared__ Long piece[COLUMNS];
    const Long tile = blockIdx.x;
    int low = 0, high = pieces;
    int middle = (int) (tile * pieces / tiles[pieces]);  // of pieces of one size, the right one
    while (high - low > 1) {
        if (tiles[middle] > tile) high = middle;
        else if (tiles[middle + 1] > tile) { low = middle; high = middle + 1; }
        else low = middle + 1;
        middle = (low + high) / 2;
    }
    for (int column = threadIdx.x; column < COLUMNS; column += THREADS)
        piece[column] = table[(Long) low * COLUMNS + column];
    __syncthreads();
    const Long first = (tile - tiles[low]) * TILE;
    switch (piece[WIDTH]) {
#if WIDTHS & 16
        case 16: copy_words<uint4>(piece, first); break;
#endif
#if WIDTHS & 8
        case 8: copy_words<unsigned long long>(piece, first); break;
#endif
#if WIDTHS & 4
        case 4: copy_words<unsigned int>(piece, first); break;
#endif
#if WIDTHS & 2
        case 2: copy_words<unsigned short>(piece, first); break;
#endif
#if WIDTHS & 1
        case 1: copy_words<unsigned char>(piece, first); break;
#endif
    }
}
"""
"""Each width takes a quarter of a second to compile, and most tables have words of one."""

_RINGS: WeakKeyDictionary[Device, Iterator[_Upload]] = WeakKeyDictionary()
"""The memory of each device's tables."""


@cache
def kernel(widths: int) -> Any:
    """Return the kernel for tables with words of these widths."""
    macros = {name: getattr(descriptors, name) for name in MACROS}
    macros |= {"THREADS": THREADS, "WIDTHS": widths}
    options = tuple(f"-D{name}={value}" for name, value in macros.items())
    return cupy.RawKernel(SOURCE, "copy_pieces", options=options)


def copy_cuda(device: Device, *batches: Pieces) -> None:
    """Copy pieces of arrays of one dtype, on the current stream."""
    table = describe(batches)
    if table is None:
        copy_host(*batches)  # too large for the kernel: one launch for each piece
        return
    if not len(table.rows):
        return
    if isinstance(device, Recorder):
        there = device.keep(np.concatenate([table.rows.reshape(-1), table.tiles]))
        _launch(table, there[: table.rows.size], there[table.rows.size :])
        return
    ring = _RINGS.get(device)
    if ring is None:
        ring = _RINGS[device] = cycle([_Upload() for _ in range(RING)])
    upload = next(ring)
    _launch(table, *upload.send(table))
    upload.used.record()


def _launch(table: Table, rows: Any, tiles: Any) -> None:
    """Launch the kernel for a table whose rows and tiles are on the device."""
    arguments = rows, tiles, np.int32(len(table.rows))
    kernel(table.widths)((int(table.tiles[-1]),), (THREADS,), arguments)


class _Upload:
    """A table in pinned memory and on the device."""

    def __init__(self) -> None:
        self.used = cupy.cuda.Event(disable_timing=True)
        self._pinned = np.empty(0, np.int64)
        self._there = cupy.empty(0, np.int64)

    def send(self, table: Table) -> tuple[Any, Any]:
        """Send a table; return its rows and tiles on the device, for the current stream."""
        self.used.synchronize()  # the last launch that read it is usually complete
        split = table.rows.size
        words = split + table.tiles.size
        if words > len(self._pinned):
            self._pinned = np.frombuffer(
                cupy.cuda.alloc_pinned_memory(2 * words * 8), np.int64, 2 * words
            )
            self._there = cupy.empty(2 * words, np.int64)
        self._pinned[:split] = table.rows.reshape(-1)
        self._pinned[split:words] = table.tiles
        cupy.cuda.runtime.memcpyAsync(
            self._there.data.ptr,
            self._pinned.ctypes.data,
            words * 8,
            cupy.cuda.runtime.memcpyHostToDevice,
            cupy.cuda.get_current_stream().ptr,
        )
        return self._there[:split], self._there[split:words]
