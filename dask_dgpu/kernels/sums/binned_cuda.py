"""Exact sums of one run of CUDA memory with a few columns, sixteen bytes at a time.

The vectors that a thread reads are a whole number of columns apart. So each position in its vectors
belongs to one column, and has one accumulator::

    thread    0 0 0 0 1 1 1 1 2 2 2 2 ...       vectors of four numbers
    column    a b c a b c a b c a b c ...       three columns, each read by several accumulators
              -----------------------
              a b c                             accumulators of a column are added by a tree

Each accumulator splits its numbers at two levels, in registers. The levels hold the digits down
to 85 bits below the largest number. Almost no number has lower digits; those go to the limbs one
by one. All digits of a float that is not much smaller than the largest belong to the first level,
so it is just added::

    2**top            2**(top - 42)       2**(top - 85)
      |----- first ------|----- second ------|  rest, to the limbs
      |  float: 24 digits  |

All accumulators of a thread have the same levels. From time to time their sums are added to
integers in the shared memory of the thread block. Threads start with common levels, and raise them
for larger numbers. At the end, threads with the same levels add their
integers by a tree, so that few atomic additions remain, whose order does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import cupy
import numpy as np

from dask_dgpu.kernels.fused.launching import compiled
from dask_dgpu.kernels.sums import binned
from dask_dgpu.kernels.sums.binned import LIMBS, Binned, PendingBinned, merged
from dask_dgpu.kernels.sums.digits import sum_digits
from dask_dgpu.kernels.sums.lanes import Form, form_of, in_elements

Array = Any

THREADS = 256  # of a thread block
ROWS = 16  # minimum number of elements of an accumulator, if there are as many
NUMBERS = 1 << 29  # most elements of one sum in the same limbs, so that these do not overflow

COLUMNS = 32  # most columns; more columns keep the threads busy without this kernel
COLUMN_BLOCKS = 1056  # eight for each multiprocessor of an H100 or H200, a few whole waves
BLOCK_NUMBERS = 1 << 20  # most elements of a thread block, so that exact sums fit in 64 bits
VECTOR_BYTES = 16

TYPES = {
    "float32": "typedef float Value; typedef float4 Values;\n",
    "float64": "typedef double Value; typedef double2 Values;\n",
}

CONSTANTS = f"""
typedef long long Long;
typedef unsigned long long Word;
constexpr int THREADS = {THREADS};
#define TOO_LARGE 8.452712498170644e+270  // 2**900: larger numbers are not added to others
constexpr int LIMBS = {LIMBS}, LOWEST = {binned.LOWEST};
constexpr int INFINITE = {binned.INFINITE}, NEGATIVE = {binned.NEGATIVE};
constexpr int NOT_A_NUMBER = {binned.NOT_A_NUMBER};
constexpr int NONE = -(1 << 20);  // the level without numbers
"""

SOURCE = r"""
constexpr int WIDTH = 16 / sizeof(Value);  // numbers of a vector
constexpr int DEEP = 4;  // vectors that a thread adds at a time, while it loads as many more

__device__ __forceinline__ void split(const float4 four, float* lane) {
    lane[0] = four.x; lane[1] = four.y; lane[2] = four.z; lane[3] = four.w;
}
__device__ __forceinline__ void split(const double2 two, double* lane) {
    lane[0] = two.x; lane[1] = two.y;
}

struct Vector {
    Value lane[WIDTH];
    __device__ __forceinline__ void read(const Value* values, Long which) {
        split(__ldcs(reinterpret_cast<const Values*>(values) + which), lane);
    }
};

// For each number j of each of several vectors k.
#define EACH_NUMBER(k, j)                            \
    _Pragma("unroll") for (int k = 0; k < DEEP; ++k) \
    _Pragma("unroll") for (int j = 0; j < WIDTH; ++j)

struct Sums {
    Word* limbs;            // of one sum
    unsigned int* special;  // its mark
};

__device__ void deposit(Sums to, Long mantissa, int position) {
    if (mantissa == 0) return;
    Word* limb = to.limbs + (position >> 5);
    const int shift = position & 31;
    const Long low = (mantissa & 0xFFFFFFFFLL) << shift;
    const Long high = (mantissa >> 32) * (1LL << shift);
    const Long parts[3] = {low & 0xFFFFFFFFLL,
                           (Long) ((Word) low >> 32) + (high & 0xFFFFFFFFLL), high >> 32};
    for (int k = 0; k < 3; ++k)
        if (parts[k]) atomicAdd(limb + k, (Word) parts[k]);
}

// A number by itself: all its digits, or a mark.
__device__ __noinline__ void deposit_number(Sums to, double value) {
    const Long bits = __double_as_longlong(value);
    const int exponent = (int) ((bits >> 52) & 0x7FF);
    Long mantissa = bits & ((1LL << 52) - 1);
    if (exponent == 0x7FF) {
        atomicOr(to.special, mantissa ? NOT_A_NUMBER : bits > 0 ? INFINITE : NEGATIVE);
        return;
    }
    if (exponent) mantissa |= 1LL << 52;
    deposit(to, bits < 0 ? -mantissa : mantissa, exponent ? exponent - 1 : 0);
}

constexpr int DIGITS = 42;      // of a part: a thread block adds up to 2**20 parts in 64 bits
constexpr int COUNT_BITS = 11;  // digits of a double beyond those of a part
constexpr int ROUND = 4;        // levels are multiples, so that threads usually share them
constexpr int LOWEST_TOP = sizeof(Value) == 4 ? -120 : -960;  // the lowest first level

// Whether all numbers are zero, or of a size of which the first level holds all digits.
// A double has more digits than a level.
__device__ __forceinline__ bool all_within(const Vector (&read)[DEEP], Value least, Value limit) {
    if (sizeof(Value) == 8) return false;
    unsigned int smallest = ~0u, largest = 0;
    EACH_NUMBER(k, j) {
        const unsigned int bits = __float_as_uint(read[k].lane[j]) & 0x7FFFFFFF;
        largest = max(largest, bits);
        smallest = min(smallest, bits - 1);  // zero is the largest
    }
    return largest < __float_as_uint(limit) && smallest >= __float_as_uint(least) - 1;
}

// The parts of a thread's numbers, which are of some adjacent columns.
struct Cuts {
    static constexpr int ENTRIES = THREADS * WIDTH;
    double first[WIDTH] = {}, second[WIDTH] = {}, big = 0.0, small = 0.0;
    Value limit = 0;  // numbers are smaller
    Value least = 0;  // of a float as large, the first level has all digits
    int high = 0, count = 0;
    Long *firsts, *seconds;  // of the block of threads
    int own, columns;        // the first entry of this thread in these; entries are of columns
    Word* limbs;             // of the first column
    unsigned int* special;
    Long before;  // entries of other blocks

    __device__ __forceinline__ Sums sums(int entry) const {
        const Long column = (before + entry) % columns;
        return {limbs + column * LIMBS, special + column};
    }

    __device__ __forceinline__ void spill() {
        #pragma unroll
        for (int j = 0; j < WIDTH; ++j) {
            firsts[own + j] += (Long) ldexp(first[j], -high);
            seconds[own + j] += (Long) ldexp(second[j], 1 + DIGITS - high);
            first[j] = second[j] = 0.0;
        }
        count = 0;
    }

    __device__ __forceinline__ void deposit_entry(int which, int level) {
        deposit(sums(which), firsts[which], level - LOWEST);
        deposit(sums(which), seconds[which], level - 1 - DIGITS - LOWEST);
        firsts[which] = seconds[which] = 0;
    }

    // Levels for numbers of which some are too large for those there are.
    __device__ __forceinline__ void raise(Vector (&read)[DEEP]) {
        double largest = 0.0;
        EACH_NUMBER(k, j) {
            const double value = (double) read[k].lane[j];
            if (fabs(value) < TOO_LARGE) {
                largest = fmax(largest, fabs(value));
            } else {
                deposit_number(sums(own + j), value);
                read[k].lane[j] = 0;
            }
        }
        if (largest < limit) return;
        const int lower = high;
        spill();
        level(top_of(largest));
        lift(high - lower);
    }

    // What was added at levels so much lower becomes integers of the present ones; what
    // digits these have no room for go to the limbs.
    __device__ __forceinline__ void lift(int by) {
        constexpr int GAP = 1 + DIGITS;
        #pragma unroll
        for (int j = 0; j < WIDTH; ++j) {
            Long &first = firsts[own + j], &second = seconds[own + j];
            const bool near = by <= GAP;
            const Long kept = near ? first >> by : 0, more = near ? second >> by : 0;
            const Long left = first - (near ? kept << by : 0);
            deposit(sums(own + j), second - (near ? more << by : 0), high - by - GAP - LOWEST);
            if (!near) deposit(sums(own + j), left, high - by - LOWEST);
            first = kept;
            second = near ? more + (left << (GAP - by)) : 0;
        }
    }

    // A power of two that is larger than a number.
    static __device__ __forceinline__ int top_of(double largest) {
        int top = (int) (__double_as_longlong(largest) >> 52) - 1022;
        top += (((-top) % ROUND) + ROUND) % ROUND;
        return max(top, LOWEST_TOP);
    }

    __device__ __forceinline__ void level(int top) {
        limit = (Value) ldexp(1.0, top);
        high = top - DIGITS;
        least = (Value) ldexp(1.0, high + 23);
        big = ldexp(1.5, high + 52);
        small = ldexp(1.5, high - 1 - DIGITS + 52);
    }

    // What the levels have no digits for.
    __device__ __forceinline__ void rest(const Vector (&read)[DEEP]) {
        EACH_NUMBER(k, j) {
            double value = (double) read[k].lane[j];
            value = __dadd_rn(value, -__dadd_rn(__dadd_rn(value, big), -big));
            value = __dadd_rn(value, -__dadd_rn(__dadd_rn(value, small), -small));
            if (value != 0.0) deposit_number(sums(own + j), value);
        }
    }

    __device__ __forceinline__ void cut(Vector (&read)[DEEP]) {
        bool fits = true, whole = true;
        EACH_NUMBER(k, j) fits = fits & (fabs((double) read[k].lane[j]) < limit);
        if (!fits) raise(read);
        EACH_NUMBER(k, j) {
            double value = (double) read[k].lane[j];
            double part = __dadd_rn(__dadd_rn(value, big), -big);
            first[j] = __dadd_rn(first[j], part);
            value = __dadd_rn(value, -part);
            part = __dadd_rn(__dadd_rn(value, small), -small);
            second[j] = __dadd_rn(second[j], part);
            whole = whole & (value == part);
        }
        if (!whole) rest(read);
    }

    __device__ __forceinline__ void take(Vector (&read)[DEEP]) {
        if (all_within(read, least, limit)) {
            EACH_NUMBER(k, j) first[j] = __dadd_rn(first[j], (double) read[k].lane[j]);
        } else {
            cut(read);
        }
        count += DEEP;
        if (count > (1 << COUNT_BITS) - DEEP) spill();
    }

    // Adds the integers of each column by a tree: those of the same levels, the highest first.
    __device__ __forceinline__ void finish(int* highest) {
        bool waits = true;
        Long mine[WIDTH], rest[WIDTH];
        spill();
        for (int j = 0; j < WIDTH; ++j) {
            mine[j] = firsts[own + j];
            rest[j] = seconds[own + j];
        }
        while (__syncthreads_or(waits)) {
            if (threadIdx.x == 0) *highest = NONE;
            __syncthreads();
            if (waits) atomicMax(highest, high);
            __syncthreads();
            const bool now = waits && high == *highest;
            for (int j = 0; j < WIDTH; ++j) {
                firsts[own + j] = now ? mine[j] : 0;
                seconds[own + j] = now ? rest[j] : 0;
            }
            waits = waits && !now;
            __syncthreads();
            for (int rows = (ENTRIES + columns - 1) / columns; rows > 1; rows = (rows + 1) / 2) {
                const int half = (rows + 1) / 2 * columns, end = min(rows * columns, ENTRIES);
                for (int other = half + (int) threadIdx.x; other < end; other += THREADS) {
                    firsts[other - half] += firsts[other];
                    seconds[other - half] += seconds[other];
                }
                __syncthreads();
            }
            if (threadIdx.x < columns) deposit_entry(threadIdx.x, *highest);
        }
    }
};

// Takes several vectors of this thread at a time, the rest as zeros.
__device__ __forceinline__ void read_all(const Value* values, Long length, Cuts& cuts) {
    const Long vectors = length / WIDTH, step = (Long) gridDim.x * THREADS;
    Long at = (Long) blockIdx.x * THREADS + threadIdx.x;
    Vector read[DEEP], next[DEEP];
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
        cuts.take(read);
    }
    if (at <= vectors) {
        #pragma unroll
        for (int k = 0; k < DEEP; ++k, at += step)
            #pragma unroll
            for (int j = 0; j < WIDTH; ++j)
                read[k].lane[j] = at * WIDTH + j < length ? values[at * WIDTH + j] : (Value) 0;
        cuts.take(read);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
sum_columns(const Value* values, Word* limbs, unsigned int* special, Long length, int columns) {
    __shared__ Long firsts[Cuts::ENTRIES], seconds[Cuts::ENTRIES];
    __shared__ int highest;
    const int thread = threadIdx.x, own = WIDTH * thread;
    Cuts cuts;
    cuts.firsts = firsts;
    cuts.seconds = seconds;
    cuts.own = own;
    cuts.columns = columns;
    cuts.limbs = limbs;
    cuts.special = special;
    cuts.before = (Long) blockIdx.x * Cuts::ENTRIES;
    for (int j = 0; j < WIDTH; ++j) firsts[own + j] = seconds[own + j] = 0;

    // All threads begin with levels for the first number of each.
    if (thread == 0) highest = LOWEST_TOP;
    __syncthreads();
    const Long at = ((Long) blockIdx.x * THREADS + thread) * WIDTH;
    const double some = at < length ? fabs((double) values[at]) : 0.0;
    atomicMax(&highest, Cuts::top_of(some < TOO_LARGE ? some : 0.0));
    __syncthreads();
    cuts.level(highest);
    read_all(values, length, cuts);
    cuts.finish(&highest);
}
"""


def block_sum_cuda(block: Array, axes: Sequence[int]) -> Binned:
    """Sum a block of float32 or float64 exactly.

    The host does not wait for the sums of one run of a few columns.
    """
    kind = block.shape, in_elements(block), tuple(axes), block.itemsize
    columns = None if block.data.ptr % VECTOR_BYTES else _columns(*kind)
    return sum_digits(block, axes) if columns is None else _in_columns(block, columns)


def _in_columns(block: Array, columns: Columns) -> Binned:
    kernel = compiled(TYPES[block.dtype.name] + CONSTANTS + SOURCE, "sum_columns")
    count = columns.columns
    most = NUMBERS * count
    begins = range(0, columns.length, most)
    words = cupy.zeros((len(begins) + 1, count, LIMBS), np.int64)  # the last one has the flags
    for limbs, begin in zip(words, begins, strict=False):
        numbers = block.data + begin * block.itemsize
        sizes = (np.int64(min(most, columns.length - begin)), np.int32(count))
        kernel((columns.blocks,), (THREADS,), (numbers, limbs, words[-1], *sizes))
    stream = cupy.cuda.get_current_stream()  # the reader may be on another stream

    def found() -> Binned:
        *parts, marks = words.get(stream)
        special = marks.reshape(-1).view(np.uint32)[:count].astype(np.uint8)
        whole = merged([Binned.of(0, part.T, special) for part in parts])
        form = columns.form
        return Binned(whole.low, form.restored(whole.limbs, 1), form.restored(whole.special))

    return PendingBinned(found, words.nbytes)


class Columns(NamedTuple):
    """One run of memory in columns: element ``i`` belongs to the sum ``i % columns``."""

    form: Form
    length: int  # number of elements
    columns: int  # number of sums
    blocks: int  # number of thread blocks, a multiple of the columns


@lru_cache(maxsize=1024)
def _columns(
    shape: tuple[int, ...], strides: tuple[int, ...], axes: tuple[int, ...], itemsize: int
) -> Columns | None:
    """Return the columns of a block; None if it is not one run of few columns."""
    form = form_of(shape, strides, axes)
    columns = form.kept[0].length if form.kept else 1
    near = not form.kept or (len(form.kept) == 1 and form.kept[0].stride == 1)
    if not near or columns > COLUMNS or len(form.summed) != 1 or form.summed[0].stride != columns:
        return None
    length = form.summed[0].length * columns
    lanes = THREADS * VECTOR_BYTES // itemsize
    blocks = max(min(COLUMN_BLOCKS, length // (lanes * ROWS)), -(-length // BLOCK_NUMBERS), 1)
    return Columns(form, length, columns, -(-blocks // columns) * columns)
