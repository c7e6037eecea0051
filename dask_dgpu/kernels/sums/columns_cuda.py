"""How a kernel sums one run of CUDA memory with a few columns, sixteen bytes at a time.

The vectors that a thread reads are a whole number of columns apart. So each position in its
vectors belongs to one column, and has one accumulator::

    thread    0 0 0 0 1 1 1 1 2 2 2 2 ...       vectors of four numbers
    column    a b c a b c a b c a b c ...       three columns, each read by several accumulators
              -----------------------
              a b c                             accumulators of a column are added by a tree
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from dask_dgpu.kernels.sums.cuda import THREADS
from dask_dgpu.kernels.sums.lanes import Form, form_of, in_elements

Array = Any

COLUMNS = 32  # most columns; more columns keep the threads busy without this kernel
VECTOR_BYTES = 16
BLOCKS = 1056  # eight thread blocks for each multiprocessor of an H100 or H200, a few whole waves
ROWS = 16  # minimum number of elements of an accumulator, if there are as many
BLOCK_NUMBERS = 1 << 20  # most elements of a thread block, so that exact sums fit in 64 bits

READING = r"""
constexpr int LANES = 16 / sizeof(Value);  // numbers of a vector
constexpr int ENTRIES = THREADS * LANES;
constexpr int SEVERAL = 4;  // vectors that a thread adds at a time, while it loads as many more

__device__ __forceinline__ void split(const float4 four, float* lane) {
    lane[0] = four.x; lane[1] = four.y; lane[2] = four.z; lane[3] = four.w;
}
__device__ __forceinline__ void split(const double2 two, double* lane) {
    lane[0] = two.x; lane[1] = two.y;
}

struct Vector {
    Value lane[LANES];
    __device__ __forceinline__ void read(const Value* values, Long which) {
        split(__ldcs(reinterpret_cast<const Values*>(values) + which), lane);
    }
};

// For each number j of each of several vectors k.
#define EACH_NUMBER(k, j)                                \
    _Pragma("unroll") for (int k = 0; k < SEVERAL; ++k)  \
    _Pragma("unroll") for (int j = 0; j < LANES; ++j)

// Has lanes.take(vectors) for several vectors of this thread at a time, the rest as zeros.
template <typename Lanes>
__device__ __forceinline__ void read_all(const Value* values, Long length, Lanes& lanes) {
    const Long vectors = length / LANES, step = (Long) gridDim.x * THREADS;
    Long at = (Long) blockIdx.x * THREADS + threadIdx.x;
    Vector read[SEVERAL], next[SEVERAL];
    if (at + (SEVERAL - 1) * step < vectors) {
        #pragma unroll
        for (int k = 0; k < SEVERAL; ++k) next[k].read(values, at + k * step);
    }
    for (; at + (SEVERAL - 1) * step < vectors; at += SEVERAL * step) {
        const bool more = at + (2 * SEVERAL - 1) * step < vectors;
        #pragma unroll
        for (int k = 0; k < SEVERAL; ++k) {
            read[k] = next[k];
            if (more) next[k].read(values, at + (SEVERAL + k) * step);
        }
        lanes.take(read);
    }
    if (at <= vectors) {
        #pragma unroll
        for (int k = 0; k < SEVERAL; ++k, at += step)
            #pragma unroll
            for (int j = 0; j < LANES; ++j)
                read[k].lane[j] = at * LANES + j < length ? values[at * LANES + j] : (Value) 0;
        lanes.take(read);
    }
}

// Adds the entries of each column in shared memory by a tree; add(into, other) adds two.
template <typename Add> __device__ __forceinline__ void add_rows(int columns, Add add) {
    for (int rows = (ENTRIES + columns - 1) / columns; rows > 1; rows = (rows + 1) / 2) {
        const int half = (rows + 1) / 2 * columns, end = min(rows * columns, ENTRIES);
        for (int other = half + (int) threadIdx.x; other < end; other += THREADS)
            add(other - half, other);
        __syncthreads();
    }
}
"""


class Columns(NamedTuple):
    """One run of memory in columns: element ``i`` belongs to the sum ``i % columns``."""

    form: Form
    length: int  # number of elements
    columns: int  # number of sums
    blocks: int  # number of thread blocks, a multiple of the columns


def columns_of(x: Array, axes: Sequence[int]) -> Columns | None:
    """Return the columns of a CuPy block; None if it is not one run of few columns."""
    if x.data.ptr % VECTOR_BYTES:
        return None
    return _columns(x.shape, in_elements(x), tuple(axes), x.itemsize)


@lru_cache(maxsize=1024)
def _columns(
    shape: tuple[int, ...], strides: tuple[int, ...], axes: tuple[int, ...], itemsize: int
) -> Columns | None:
    form = form_of(shape, strides, axes)
    columns = form.kept[0].length if form.kept else 1
    near = not form.kept or (len(form.kept) == 1 and form.kept[0].stride == 1)
    if not near or columns > COLUMNS or len(form.summed) != 1 or form.summed[0].stride != columns:
        return None
    length = form.summed[0].length * columns
    lanes = THREADS * VECTOR_BYTES // itemsize
    blocks = max(min(BLOCKS, length // (lanes * ROWS)), -(-length // BLOCK_NUMBERS), 1)
    return Columns(form, length, columns, -(-blocks // columns) * columns)
