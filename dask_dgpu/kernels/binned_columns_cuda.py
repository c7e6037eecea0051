"""Exact sums of one run of CUDA memory in a few columns, at the speed of the memory.

Each accumulator cuts its numbers at two levels, which hold what lies up to 85 bits below the
largest, so that almost no number has a digit left, and those that have go to the limbs by
themselves. A float that is not much smaller than the largest has all its
digits at the first level, and is just added. Threads begin with common levels and raise them
for larger numbers; those of the same levels are added as integers by a tree, so that few
atomic additions are left.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import cupy
import numpy as np

from dask_dgpu.kernels import limbs_cuda
from dask_dgpu.kernels.binned import Binned, merged
from dask_dgpu.kernels.columns_cuda import READING, Columns
from dask_dgpu.kernels.limbs import LIMBS
from dask_dgpu.kernels.strides_cuda import INDEXING, THREADS

Array = Any

DIGITS = 42
"""Of a cut: a block of threads adds up to 2**20 of them as integers of 64 bits."""

COUNT_BITS = 11
"""So many more digits has a double."""

LOWEST_TOP = {"float": -120, "double": -960}
"""Levels do not go below; there the second has all digits of a float."""

HUGE_POWER = 900
ROUND = 4
"""Levels are multiples of this, so that threads have the same ones as a rule."""

SOURCE = (
    INDEXING
    + limbs_cuda.DEPOSIT
    + READING
    + r"""
template <typename Value> struct Range;
template <> struct Range<float> {
    static constexpr int LOWEST_TOP = LOWEST_TOP_FLOAT, VECTORS = VECTORS_FLOAT;
};
template <> struct Range<double> {
    static constexpr int LOWEST_TOP = LOWEST_TOP_DOUBLE, VECTORS = VECTORS_DOUBLE;
};

// Whether all numbers are zero, or of a size of which the first level holds all digits.
template <int SEVERAL>
__device__ __forceinline__ bool all_within(const Vector<float> (&read)[SEVERAL], float least,
                                           float limit) {
    unsigned int smallest = ~0u, largest = 0;
    #pragma unroll
    for (int k = 0; k < SEVERAL; ++k)
        #pragma unroll
        for (int j = 0; j < 4; ++j) {
            const unsigned int bits = __float_as_uint(read[k].lane[j]) & 0x7FFFFFFF;
            largest = max(largest, bits);
            smallest = min(smallest, bits - 1);  // zero is the largest
        }
    return largest < __float_as_uint(limit) && smallest >= __float_as_uint(least) - 1;
}

// A double has more digits than a level.
template <int SEVERAL>
__device__ __forceinline__ bool all_within(const Vector<double> (&)[SEVERAL], double, double) {
    return false;
}

template <typename Value> struct Cuts {
    static constexpr int LANES = Vector<Value>::LANES, ENTRIES = THREADS * LANES;
    double first[LANES] = {}, second[LANES] = {}, big = 0.0, small = 0.0;
    Value limit = 0;  // numbers are smaller
    Value least = 0;  // of a float as large, the first level has all digits
    int high = 0, count = 0;
    Long *firsts, *seconds;  // of the block of threads
    Word* limbs;             // of the first column
    unsigned int* special;
    int columns;

    __device__ __forceinline__ int entry(int lane) const { return LANES * threadIdx.x + lane; }
    __device__ __forceinline__ Sums sums(int entry) const {
        const Long column = ((Long) blockIdx.x * ENTRIES + entry) % columns;
        return {limbs + column * LIMBS, special + column};
    }

    __device__ __forceinline__ void spill() {
        #pragma unroll
        for (int j = 0; j < LANES; ++j) {
            firsts[entry(j)] += mantissa_of(first[j], high);
            seconds[entry(j)] += mantissa_of(second[j], high - 1 - DIGITS);
            first[j] = second[j] = 0.0;
        }
        count = 0;
    }

    __device__ __forceinline__ void deposit_entry(int which) {
        deposit(sums(which), firsts[which], high - LOWEST);
        deposit(sums(which), seconds[which], high - 1 - DIGITS - LOWEST);
        firsts[which] = seconds[which] = 0;
    }

    // Levels for numbers of which some are too large for those there are.
    template <int SEVERAL> __device__ __forceinline__ void raise(Vector<Value> (&read)[SEVERAL]) {
        double largest = 0.0;
        #pragma unroll
        for (int k = 0; k < SEVERAL; ++k)
            #pragma unroll
            for (int j = 0; j < LANES; ++j) {
                const double value = widened(read[k].lane[j]);
                if (fabs(value) < HUGE) {
                    largest = fmax(largest, fabs(value));
                } else {
                    deposit_number(sums(entry(j)), value);
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
        for (int j = 0; j < LANES; ++j) {
            Long &first = firsts[entry(j)], &second = seconds[entry(j)];
            const bool near = by <= GAP;
            const Long kept = near ? first >> by : 0, more = near ? second >> by : 0;
            const Long left = first - (near ? kept << by : 0);
            deposit(sums(entry(j)), second - (near ? more << by : 0), high - by - GAP - LOWEST);
            if (!near) deposit(sums(entry(j)), left, high - by - LOWEST);
            first = kept;
            second = near ? more + (left << (GAP - by)) : 0;
        }
    }

    // A power of two that is larger than a number.
    static __device__ __forceinline__ int top_of(double largest) {
        int top = (int) (__double_as_longlong(largest) >> 52) - 1022;
        top += (((-top) % ROUND) + ROUND) % ROUND;
        return max(top, Range<Value>::LOWEST_TOP);
    }

    __device__ __forceinline__ void level(int top) {
        limit = (Value) ldexp(1.0, top);
        high = top - DIGITS;
        least = (Value) ldexp(1.0, high + 23);
        big = ldexp(1.5, high + 52);
        small = ldexp(1.5, high - 1 - DIGITS + 52);
    }

    // What the levels have no digits for.
    template <int SEVERAL>
    __device__ __forceinline__ void rest(const Vector<Value> (&read)[SEVERAL]) {
        #pragma unroll
        for (int k = 0; k < SEVERAL; ++k)
            #pragma unroll
            for (int j = 0; j < LANES; ++j) {
                double value = widened(read[k].lane[j]);
                value = __dadd_rn(value, -__dadd_rn(__dadd_rn(value, big), -big));
                value = __dadd_rn(value, -__dadd_rn(__dadd_rn(value, small), -small));
                if (value != 0.0) deposit_number(sums(entry(j)), value);
            }
    }

    template <int SEVERAL> __device__ __forceinline__ void cut(Vector<Value> (&read)[SEVERAL]) {
        bool fits = true, whole = true;
        #pragma unroll
        for (int k = 0; k < SEVERAL; ++k)
            #pragma unroll
            for (int j = 0; j < LANES; ++j) fits = fits & (fabs(widened(read[k].lane[j])) < limit);
        if (!fits) raise(read);
        #pragma unroll
        for (int k = 0; k < SEVERAL; ++k)
            #pragma unroll
            for (int j = 0; j < LANES; ++j) {
                double value = widened(read[k].lane[j]);
                double part = __dadd_rn(__dadd_rn(value, big), -big);
                first[j] = __dadd_rn(first[j], part);
                value = __dadd_rn(value, -part);
                part = __dadd_rn(__dadd_rn(value, small), -small);
                second[j] = __dadd_rn(second[j], part);
                whole = whole & (value == part);
            }
        if (!whole) rest(read);
    }

    template <int SEVERAL> __device__ __forceinline__ void take(Vector<Value> (&read)[SEVERAL]) {
        if (all_within(read, least, limit)) {
            #pragma unroll
            for (int k = 0; k < SEVERAL; ++k)
                #pragma unroll
                for (int j = 0; j < LANES; ++j)
                    first[j] = __dadd_rn(first[j], widened(read[k].lane[j]));
        } else {
            cut(read);
        }
        count += SEVERAL;
        if (count > (1 << COUNT_BITS) - SEVERAL) spill();
    }
};

template <typename Value>
__device__ void sum_columns(const Value* values, Word* limbs, unsigned int* special, Long length,
                            int columns) {
    constexpr int LANES = Vector<Value>::LANES, ENTRIES = THREADS * LANES;
    __shared__ Long firsts[ENTRIES], seconds[ENTRIES];
    __shared__ int highest;
    const int thread = threadIdx.x;
    Cuts<Value> cuts;
    cuts.firsts = firsts;
    cuts.seconds = seconds;
    cuts.limbs = limbs;
    cuts.special = special;
    cuts.columns = columns;
    for (int j = 0; j < LANES; ++j) firsts[LANES * thread + j] = seconds[LANES * thread + j] = 0;

    // All threads begin with levels for the first number of each.
    if (thread == 0) highest = Range<Value>::LOWEST_TOP;
    __syncthreads();
    const Long at = ((Long) blockIdx.x * THREADS + thread) * LANES;
    const double some = at < length ? fabs(widened(values[at])) : 0.0;
    atomicMax(&highest, Cuts<Value>::top_of(some < HUGE ? some : 0.0));
    __syncthreads();
    cuts.level(highest);
    read_all<Value, Range<Value>::VECTORS>(values, length, cuts);
    cuts.spill();

    // Those of the same levels are added, the highest first.
    Long mine[LANES], rest[LANES];
    for (int j = 0; j < LANES; ++j) {
        mine[j] = firsts[LANES * thread + j];
        rest[j] = seconds[LANES * thread + j];
    }
    bool waits = true;
    while (__syncthreads_or(waits)) {
        if (thread == 0) highest = NONE;
        __syncthreads();
        if (waits) atomicMax(&highest, cuts.high);
        __syncthreads();
        const bool now = waits && cuts.high == highest;
        for (int j = 0; j < LANES; ++j) {
            firsts[LANES * thread + j] = now ? mine[j] : 0;
            seconds[LANES * thread + j] = now ? rest[j] : 0;
        }
        waits = waits && !now;
        __syncthreads();
        for (int rows = (ENTRIES + columns - 1) / columns; rows > 1; rows = (rows + 1) / 2) {
            const int half = (rows + 1) / 2 * columns, end = min(rows * columns, ENTRIES);
            for (int other = half + thread; other < end; other += THREADS) {
                firsts[other - half] += firsts[other];
                seconds[other - half] += seconds[other];
            }
            __syncthreads();
        }
        const int own = cuts.high;
        cuts.high = highest;
        if (thread < columns) cuts.deposit_entry(thread);
        cuts.high = own;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
sum_columns_float(const float* values, Word* limbs, unsigned int* special, Long length,
                  int columns) {
    sum_columns(values, limbs, special, length, columns);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
sum_columns_double(const double* values, Word* limbs, unsigned int* special, Long length,
                   int columns) {
    sum_columns(values, limbs, special, length, columns);
}
"""
)

CONSTANTS = {
    **limbs_cuda.CONSTANTS,
    "THREADS": THREADS,
    "DIGITS": DIGITS,
    "COUNT_BITS": COUNT_BITS,
    "LOWEST_TOP_FLOAT": f"({LOWEST_TOP['float']})",
    "LOWEST_TOP_DOUBLE": f"({LOWEST_TOP['double']})",
    "HUGE": f"{2.0**HUGE_POWER!r}",
    "ROUND": ROUND,
    "VECTORS_FLOAT": 4,
    "VECTORS_DOUBLE": 4,
    "NONE": "(-(1 << 20))",
}


@cache
def _kernel(name: str) -> Any:
    options = tuple(f"-D{key}={value}" for key, value in CONSTANTS.items())
    return cupy.RawModule(code=SOURCE, options=options).get_function(name)


def columns_sum_cuda(block: Array, columns: Columns) -> Binned:
    """Sum the columns of a block of float32 or float64 exactly; the host waits for them."""
    kernel = _kernel("sum_columns_float" if block.dtype == cupy.float32 else "sum_columns_double")
    numbers = cupy.ndarray(columns.length, block.dtype, memptr=block.data)
    count, most = columns.columns, limbs_cuda.NUMBERS * columns.columns
    begins = range(0, columns.length, most)
    words = cupy.zeros((len(begins) + 1, count, LIMBS), np.int64)  # the marks are the last
    special = words[-1].view(np.uint32)
    for limbs, begin in zip(words, begins, strict=False):
        part = numbers[begin : begin + most]
        sizes = (np.int64(part.size), np.int32(count))
        kernel(*columns.launch, (part, limbs, special, *sizes))
    found = list(_found(words.get()))
    return merged(found) if len(found) > 1 else found[0]


def _found(words: Array) -> Iterator[Binned]:
    """Yield the sums of which a device has made these words."""
    *parts, marks = words
    special = marks.reshape(-1).view(np.uint32)[: marks.shape[0]].astype(np.uint8)
    for part in parts:
        touched = np.flatnonzero(part.any(axis=0))
        first, last = (int(touched[0]), int(touched[-1])) if len(touched) else (0, -1)
        yield Binned.of(first, np.ascontiguousarray(part[:, first : last + 1].T), special)
