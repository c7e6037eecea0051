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

ROUND = 4
"""Words that a thread reads before it writes them: enough reads are under way."""

MACROS = (
    *("TARGET", "SOURCE", "WIDTH", "NDIM", "WORDS", "LENGTHS", "TARGET_STRIDES"),
    *("SOURCE_STRIDES", "COLUMNS", "TILE"),
)
"""Constants of the kernel."""

RING = 8
"""Concurrent tables; a round of an exchange takes two."""

SOURCE = r"""
typedef long long Long;

// Where a word of a piece is on both sides: 32-bit divisions, because 64-bit ones are slow.
__device__ __forceinline__ void locate(const Long* piece, unsigned word, Long& to, Long& from) {
    const int outermost = (int) piece[NDIM] - 1;
    to = piece[TARGET];
    from = piece[SOURCE];
    #pragma unroll 1
    for (int axis = 0; axis < outermost; ++axis) {
        const unsigned length = (unsigned) piece[LENGTHS + axis];
        const unsigned next = word / length;
        const Long along = word - next * length;
        to += along * piece[TARGET_STRIDES + axis];
        from += along * piece[SOURCE_STRIDES + axis];
        word = next;
    }
    to += (Long) word * piece[TARGET_STRIDES + outermost];
    from += (Long) word * piece[SOURCE_STRIDES + outermost];
}

template <typename Word>
__device__ void copy_words(const Long* to, const Long* from, unsigned count) {
    Word words[ROUND];
    #pragma unroll
    for (unsigned k = 0; k < ROUND; ++k)
        if (k * THREADS < count) words[k] = *(const Word*) from[k];
    #pragma unroll
    for (unsigned k = 0; k < ROUND; ++k)
        if (k * THREADS < count) *(Word*) to[k] = words[k];
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
    const unsigned stop = (unsigned) min(first + TILE, piece[WORDS]);
    for (unsigned word = (unsigned) first + threadIdx.x; word < stop; word += ROUND * THREADS) {
        Long to[ROUND], from[ROUND];
        #pragma unroll
        for (unsigned k = 0; k < ROUND; ++k) locate(piece, word + k * THREADS, to[k], from[k]);
        switch (piece[WIDTH]) {
            case 16: copy_words<uint4>(to, from, stop - word); break;
            case 8: copy_words<unsigned long long>(to, from, stop - word); break;
            case 4: copy_words<unsigned int>(to, from, stop - word); break;
            case 2: copy_words<unsigned short>(to, from, stop - word); break;
            case 1: copy_words<unsigned char>(to, from, stop - word); break;
        }
    }
}
"""
"""One piece of code finds the words of all widths: it takes most of the time to compile."""

_RINGS: WeakKeyDictionary[Device, Iterator[_Upload]] = WeakKeyDictionary()
"""The memory of each device's tables."""


@cache
def kernel() -> Any:
    """Return the kernel."""
    macros = {name: getattr(descriptors, name) for name in MACROS}
    macros |= {"THREADS": THREADS, "ROUND": ROUND}
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
    kernel()((int(table.tiles[-1]),), (THREADS,), arguments)


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
