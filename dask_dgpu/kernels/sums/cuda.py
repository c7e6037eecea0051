"""How kernels of exact sums read blocks in CUDA memory.

A grid of threads reads any block. One run of memory with a few columns is read faster, sixteen
bytes at a time. The vectors that a thread reads are a whole number of columns apart. So each
position in its vectors belongs to one column, and has one accumulator::

    thread    0 0 0 0 1 1 1 1 2 2 2 2 ...       vectors of four numbers
    column    a b c a b c a b c a b c ...       three columns, each read by several accumulators
              -----------------------
              a b c                             accumulators of a column are added by a tree

CuPy compiles with ``-ftz=true``, by which its own conversions flush subnormal numbers to zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import cupy
import numpy as np

from dask_dgpu.kernels.sums.lanes import Axis, Form, form_of, gathered, in_elements

Array = Any

THREADS = 256  # of a thread block
WARP = 32
EACH = 8  # numbers that a thread adds at a time
ROWS = 16  # minimum number of elements of an accumulator, if there are as many

GRID_BLOCKS = 2048  # thread blocks that keep a device busy to the end

COLUMNS = 32  # most columns; more columns keep the threads busy without this kernel
COLUMN_BLOCKS = 1056  # eight for each multiprocessor of an H100 or H200, a few whole waves
BLOCK_NUMBERS = 1 << 20  # most elements of a thread block, so that exact sums fit in 64 bits
VECTOR_BYTES = 16

WIDENED = r"""
__device__ __forceinline__ double widened(double value) { return value; }
__device__ __forceinline__ double widened(float value) {
    double wide;
    asm("cvt.f64.f32 %0, %1;" : "=d"(wide) : "f"(value));
    return wide;
}
"""


def kernels(source: str) -> Callable[[str, str], Any]:
    """Return a function that compiles a kernel, by its name, for blocks of float32 or float64.

    In the source these are the type ``Value``, and 16 bytes of them the type ``Values``. CuPy
    caches the code on disk.
    """

    @cache
    def kernel(name: str, dtype: str) -> Any:
        return cupy.RawModule(code=TYPES[dtype] + COMMON + source).get_function(name)

    return kernel


TYPES = {
    "float32": "typedef float Value; typedef float4 Values;",
    "float64": "typedef double Value; typedef double2 Values;",
}

COMMON = rf"""
typedef long long Long;
constexpr int THREADS = {THREADS};
#define TOO_LARGE 8.452712498170644e+270  // 2**900: larger numbers are not added to others
{WIDENED}"""

INDEXING = r"""
// across: sums of a block, of neighbouring threads; down: numbers of one sum that a block adds at a
// time; near: whether neighbouring threads are of different sums; segments: blocks that share a sum
#define LAYOUT Long kept, Long kept_inner, Long kept_outer_stride, Long kept_inner_stride, \
    Long summed, Long summed_inner, Long summed_outer_stride, Long summed_inner_stride, \
    int across, int down, int near, int segments

__device__ __forceinline__ Long offset_of(Long at, Long inner, Long outer_stride, Long stride) {
    if (outer_stride == 0) return at * stride;
    const Long outer = at / inner;
    return outer * outer_stride + (at - outer * inner) * stride;
}
"""
"""The kernel parameters ``LAYOUT`` are the ``arguments`` of a :class:`Grid`."""


class Grid(NamedTuple):
    """The axes of a block, and their distribution to threads."""

    form: Form
    sums: int  # number of sums
    length: int  # numbers of each sum
    across: int  # sums of a thread block
    segments: int  # thread blocks that share a sum
    arguments: tuple[Any, ...]  # LAYOUT


def grid_of(x: Array, axes: Sequence[int]) -> tuple[Array, Grid]:
    """Return a CuPy block with non-negative strides, and its grid.

    The block is copied if more than two axes of either kind remain.
    """
    form = form_of(x.shape, in_elements(x), axes)
    if len(form.kept) > 2 or len(form.summed) > 2 or any(s % x.itemsize for s in x.strides):
        x, form = gathered(x, axes)
    one = Axis(1, 0)
    axes_of = [(one, one, *form.kept)[-2:], (one, one, *form.summed)[-2:]]
    sums, length = (outer.length * inner.length for outer, inner in axes_of)
    near = bool(form.kept) and (not form.summed or form.kept[-1].stride < form.summed[-1].stride)
    if near:
        across = min(sums, THREADS if length < ROWS else 32 if sums > THREADS else sums)
        down = THREADS // across
    else:
        down = max(min(WARP, _power(length)), min(THREADS, _power(-(-length // EACH))))
        across = THREADS // down
    wanted = -(-GRID_BLOCKS // -(-sums // across))
    segments = max(1, min(wanted, length // (down * ROWS), 65535))
    wide: list[int] = []
    for outer, inner in axes_of:
        outer_stride = outer.stride if outer.length > 1 else 0
        wide += [outer.length * inner.length, inner.length, outer_stride, inner.stride]
    narrow = (across, down, int(near), segments)
    arguments = (*map(np.int64, wide), *map(np.int32, narrow))
    return x, Grid(form, sums, length, across, segments, arguments)


def _power(number: int) -> int:
    """Return the next power of two."""
    return 1 << max(0, number - 1).bit_length()


READING = r"""
constexpr int WIDTH = 16 / sizeof(Value);  // numbers of a vector
constexpr int DEEP = 4;  // vectors that a thread adds at a time, while it loads as many more

__device__ __forceinline__ void split(const float4 four, float* lane) {
    lane[0] = four.x; lane[1] = four.y; lane[2] = four.z; lane[3] = four.w;
}
__device__ __forceinline__ void split(const double2 two, double* lane) {
    lane[0] = two.x; lane[1] = two.y;
}

template <int LANES> struct Vector {
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
    const Long vectors = length / WIDTH, step = (Long) gridDim.x * THREADS;
    Long at = (Long) blockIdx.x * THREADS + threadIdx.x;
    Vector<WIDTH> read[DEEP], next[DEEP];
    if (at + (DEEP - 1) * step < vectors) {
        #pragma unroll
        for (int k = 0; k < DEEP; ++k) next[k].read(values, at + k * step);
    }
    for (; at + (DEEP - 1) * step < vectors; at += DEEP * step) {
        const bool more = at + (2 * DEEP - 1) * step < vectors;
        #pragma unroll
        for (int k = 0; k < DEEP; ++k) {
            read[k] = next[k];
            if (more) next[k].read(values, at + (DEEP + k) * step);
        }
        lanes.take(read);
    }
    if (at <= vectors) {
        #pragma unroll
        for (int k = 0; k < DEEP; ++k, at += step)
            #pragma unroll
            for (int j = 0; j < WIDTH; ++j)
                read[k].lane[j] = at * WIDTH + j < length ? values[at * WIDTH + j] : (Value) 0;
        lanes.take(read);
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
    blocks = max(min(COLUMN_BLOCKS, length // (lanes * ROWS)), -(-length // BLOCK_NUMBERS), 1)
    return Columns(form, length, columns, -(-blocks // columns) * columns)
