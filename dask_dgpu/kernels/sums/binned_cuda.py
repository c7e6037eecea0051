"""Exact sums of one run of CUDA memory in a few columns, at the speed of the memory.

Each accumulator splits its numbers at two levels, in registers. The levels hold the digits down
to 85 bits below the largest number. Almost no number has lower digits; those go to the limbs one
by one. All digits of a float that is not much smaller than the largest belong to the first level,
so it is just added::

    2**top            2**(top - 42)       2**(top - 85)
      |----- first ------|----- second ------|  rest, to the limbs
      |  float: 24 digits  |

All accumulators of a thread have the same levels. From time to time their sums are added to
integers in the shared memory of the thread block. Threads start with common levels and raise
them for larger numbers. At the end, threads with the same levels add their integers by a tree,
so that few atomic additions remain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cupy
import numpy as np

from dask_dgpu.kernels.sums.binned import LIMBS, Binned, PendingBinned, merged, trimmed
from dask_dgpu.kernels.sums.binned_grid_cuda import DEPOSIT, NUMBERS, grid_sum_cuda
from dask_dgpu.kernels.sums.cuda import READING, THREADS, columns_of, kernels
from dask_dgpu.kernels.sums.lanes import Form

Array = Any

SOURCE = r"""
constexpr int DIGITS = 42;      // of a part: a thread block adds up to 2**20 parts in 64 bits
constexpr int COUNT_BITS = 11;  // digits of a double beyond those of a part
constexpr int ROUND = 4;        // levels are multiples, so that threads usually share them
constexpr int LOWEST_TOP = sizeof(Value) == 4 ? -120 : -960;  // the lowest first level

// Whether all numbers are zero, or of a size of which the first level holds all digits.
// A double has more digits than a level.
__device__ __forceinline__ bool all_within(const Vector (&read)[SEVERAL], Value least,
                                           Value limit) {
    if (sizeof(Value) == 8) return false;
    unsigned int smallest = ~0u, largest = 0;
    EACH_NUMBER(k, j) {
        const unsigned int bits = __float_as_uint(read[k].lane[j]) & 0x7FFFFFFF;
        largest = max(largest, bits);
        smallest = min(smallest, bits - 1);  // zero is the largest
    }
    return largest < __float_as_uint(limit) && smallest >= __float_as_uint(least) - 1;
}

struct Cuts {
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
    __device__ __forceinline__ void raise(Vector (&read)[SEVERAL]) {
        double largest = 0.0;
        EACH_NUMBER(k, j) {
            const double value = widened(read[k].lane[j]);
            if (fabs(value) < TOO_LARGE) {
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
    __device__ __forceinline__ void rest(const Vector (&read)[SEVERAL]) {
        EACH_NUMBER(k, j) {
            double value = widened(read[k].lane[j]);
            value = __dadd_rn(value, -__dadd_rn(__dadd_rn(value, big), -big));
            value = __dadd_rn(value, -__dadd_rn(__dadd_rn(value, small), -small));
            if (value != 0.0) deposit_number(sums(entry(j)), value);
        }
    }

    __device__ __forceinline__ void cut(Vector (&read)[SEVERAL]) {
        bool fits = true, whole = true;
        EACH_NUMBER(k, j) fits = fits & (fabs(widened(read[k].lane[j])) < limit);
        if (!fits) raise(read);
        EACH_NUMBER(k, j) {
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

    __device__ __forceinline__ void take(Vector (&read)[SEVERAL]) {
        if (all_within(read, least, limit)) {
            EACH_NUMBER(k, j) first[j] = __dadd_rn(first[j], widened(read[k].lane[j]));
        } else {
            cut(read);
        }
        count += SEVERAL;
        if (count > (1 << COUNT_BITS) - SEVERAL) spill();
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 2)
sum_columns(const Value* values, Word* limbs, unsigned int* special, Long length, int columns) {
    __shared__ Long firsts[ENTRIES], seconds[ENTRIES];
    __shared__ int highest;
    const int thread = threadIdx.x;
    Cuts cuts;
    cuts.firsts = firsts;
    cuts.seconds = seconds;
    cuts.limbs = limbs;
    cuts.special = special;
    cuts.columns = columns;
    for (int j = 0; j < LANES; ++j) firsts[LANES * thread + j] = seconds[LANES * thread + j] = 0;

    // All threads begin with levels for the first number of each.
    if (thread == 0) highest = LOWEST_TOP;
    __syncthreads();
    const Long at = ((Long) blockIdx.x * THREADS + thread) * LANES;
    const double some = at < length ? fabs(widened(values[at])) : 0.0;
    atomicMax(&highest, Cuts::top_of(some < TOO_LARGE ? some : 0.0));
    __syncthreads();
    cuts.level(highest);
    read_all(values, length, cuts);
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
        add_rows(columns, [&](int into, int other) {
            firsts[into] += firsts[other];
            seconds[into] += seconds[other];
        });
        const int own = cuts.high;
        cuts.high = highest;
        if (thread < columns) cuts.deposit_entry(thread);
        cuts.high = own;
    }
}
"""

KERNEL = kernels(DEPOSIT + READING + SOURCE)


def block_sum_cuda(block: Array, axes: Sequence[int]) -> Binned:
    """Sum a block of float32 or float64 with non-negative strides exactly.

    The host does not wait for the sums of one run of a few columns.
    """
    columns = columns_of(block, axes)
    if columns is None:
        return grid_sum_cuda(block, axes)
    kernel, count = KERNEL("sum_columns", block.dtype.name), columns.columns
    most = NUMBERS * count
    begins = range(0, columns.length, most)
    words = cupy.zeros((len(begins) + 1, count, LIMBS), np.int64)  # the last one has the flags
    for limbs, begin in zip(words, begins, strict=False):
        numbers = block.data + begin * block.itemsize
        sizes = (np.int64(min(most, columns.length - begin)), np.int32(count))
        kernel((columns.blocks,), (THREADS,), (numbers, limbs, words[-1], *sizes))
    stream = cupy.cuda.get_current_stream()  # the reader may be on another stream
    return PendingBinned(lambda: _found(words.get(stream), columns.form), words.nbytes)


def _found(words: Array, form: Form) -> Binned:
    """Return the sums in the words of a device."""
    *parts, marks = words
    special = marks.reshape(-1).view(np.uint32)[: marks.shape[0]].astype(np.uint8)
    sums = [Binned.of(*trimmed(part.T), special) for part in parts]
    whole = merged(sums) if len(sums) > 1 else sums[0]
    return Binned(whole.low, form.restored(whole.limbs, 1), form.restored(whole.special))
