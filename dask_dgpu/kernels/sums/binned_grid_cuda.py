"""Exact sums in CUDA memory: one launch that reads, and integers that are added to limbs.

Each thread splits its numbers at two levels, like the loops for NumPy, and adds the parts
exactly. The levels change when a number does not fit; digits below both levels go to the limbs.
Threads with the same levels add their parts as integers, and one of them adds the sum to the
limbs by atomic additions, whose order does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import cupy
import numpy as np

from dask_dgpu.kernels.sums import binned
from dask_dgpu.kernels.sums.binned import LIMBS, Binned, limb_range, merged
from dask_dgpu.kernels.sums.cuda import INDEXING, THREADS, Grid, grid_of, kernels

Array = Any

SUMS = 1 << 16  # most sums with limbs on the device at a time
NUMBERS = 1 << 29  # most elements of one sum in the same limbs, so that these do not overflow

CONSTANTS = f"""
constexpr int LIMBS = {LIMBS}, LOWEST = {binned.LOWEST};
constexpr int INFINITE = {binned.INFINITE}, NEGATIVE = {binned.NEGATIVE};
constexpr int NOT_A_NUMBER = {binned.NOT_A_NUMBER};
constexpr int NONE = -(1 << 20);  // the level without numbers
"""

DEPOSIT = (
    CONSTANTS
    + r"""
typedef unsigned long long Word;

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

__device__ __forceinline__ Long mantissa_of(double cut, int level) {
    return (Long) ldexp(cut, -level);
}
"""
)

SOURCE = r"""
constexpr int BATCH = 8;           // concurrent reads of a thread
constexpr int COUNT_BITS = 13;     // 2**13 numbers are added to a level before it is flushed
constexpr int DIGITS = 53 - COUNT_BITS;
constexpr int HUGE_POWER = 900;    // numbers from 2**900 on go to the limbs one by one
constexpr int ROUND = 8;           // levels are multiples, so that threads usually share them

struct Cuts {
    double first, second, big, small;
    Long limit;  // numbers have smaller bits
    int high, low, count;
};

__device__ void flush(const Sums& to, Cuts& cuts) {
    if (cuts.high != NONE) {
        deposit(to, mantissa_of(cuts.first, cuts.high), cuts.high - LOWEST);
        deposit(to, mantissa_of(cuts.second, cuts.low), cuts.low - LOWEST);
    }
    cuts.first = cuts.second = 0.0;
    cuts.count = BATCH;  // some of those that were counted may come after this
}

// Levels for a number that is too large for those there are.
__device__ __noinline__ bool set_levels(const Sums& to, Cuts& cuts, double value) {
    const Long bits = __double_as_longlong(value) & 0x7FFFFFFFFFFFFFFFLL;
    if (bits >= ((Long) (HUGE_POWER + 1023) << 52)) {
        deposit_number(to, value);
        return false;
    }
    flush(to, cuts);
    int top = (int) (bits >> 52) - 1022;
    top += (((-top) % ROUND) + ROUND) % ROUND;
    cuts.limit = top > -1022 ? (Long) (top + 1023) << 52 : 1LL << 52;
    cuts.high = max(top - DIGITS, LOWEST);
    cuts.low = max(cuts.high - 1 - DIGITS, LOWEST);
    cuts.big = ldexp(1.5, cuts.high + 52);
    cuts.small = ldexp(1.5, cuts.low + 52);
    return true;
}

__device__ __forceinline__ void take(const Sums& to, Cuts& cuts, double value) {
    const Long bits = __double_as_longlong(value) & 0x7FFFFFFFFFFFFFFFLL;
    if (bits >= cuts.limit && !set_levels(to, cuts, value)) return;
    double part = __dadd_rn(__dadd_rn(value, cuts.big), -cuts.big);
    cuts.first = __dadd_rn(cuts.first, part);
    value = __dadd_rn(value, -part);
    part = __dadd_rn(__dadd_rn(value, cuts.small), -cuts.small);
    cuts.second = __dadd_rn(cuts.second, part);
    value = __dadd_rn(value, -part);
    if (__double_as_longlong(value) << 1) deposit_number(to, value);
}

extern "C" __global__ void __launch_bounds__(THREADS)
sum_grid(const Value* values, Word* limbs, unsigned int* special, Long base, Long begin, Long end,
         LAYOUT) {
    __shared__ Long first[THREADS], second[THREADS];
    __shared__ int levels[THREADS];
    const int thread = threadIdx.x;
    const int column = near ? thread % across : thread / down;
    const int row = near ? thread / across : thread % down;
    const Long sum = base + (Long) blockIdx.x * across + column;
    const bool works = column < across && row < down && sum < kept;
    const Sums to = {limbs + (sum - base) * LIMBS, special + (sum - base)};
    Cuts cuts = {0.0, 0.0, 0.0, 0.0, 0, NONE, NONE, 0};
    if (works) {
        values += offset_of(sum, kept_inner, kept_outer_stride, kept_inner_stride);
        const Long step = (Long) segments * down;
        Long next = begin + (Long) blockIdx.y * down + row;
        while (next < end) {
            Value read[BATCH];
            int taken = 0;
            #pragma unroll
            for (int k = 0; k < BATCH; ++k, next += step)
                if (next < end) {
                    read[k] = values[offset_of(next, summed_inner, summed_outer_stride,
                                               summed_inner_stride)];
                    ++taken;
                }
            cuts.count += BATCH;
            if (cuts.count > (1 << COUNT_BITS)) flush(to, cuts);
            #pragma unroll
            for (int k = 0; k < BATCH; ++k)
                if (k < taken) take(to, cuts, widened(read[k]));
        }
    }
    const bool any = works && cuts.high != NONE;
    first[thread] = any ? mantissa_of(cuts.first, cuts.high) : 0;
    second[thread] = any ? mantissa_of(cuts.second, cuts.low) : 0;
    levels[thread] = any ? cuts.high : NONE;
    __syncthreads();
    const int stride = near ? across : 1;  // threads from one row to the next
    for (int rows = down; rows > 1; rows = (rows + 1) / 2) {
        const int half = (rows + 1) / 2, other = thread + half * stride;
        if (works && row + half < rows && levels[other] != NONE) {
            if (levels[thread] != levels[other] && levels[thread] != NONE) {
                deposit(to, first[thread], levels[thread] - LOWEST);
                deposit(to, second[thread], max(levels[thread] - 1 - DIGITS, LOWEST) - LOWEST);
                first[thread] = second[thread] = 0;
            }
            levels[thread] = levels[other];
            first[thread] += first[other];
            second[thread] += second[other];
        }
        __syncthreads();
    }
    if (works && row == 0 && levels[thread] != NONE) {
        deposit(to, first[thread], levels[thread] - LOWEST);
        deposit(to, second[thread], max(levels[thread] - 1 - DIGITS, LOWEST) - LOWEST);
    }
}
"""

KERNEL = kernels(INDEXING + DEPOSIT + SOURCE)


def grid_sum_cuda(block: Array, axes: Sequence[int]) -> Binned:
    """Sum a block of float32 or float64 with non-negative strides exactly."""
    block, grid = grid_of(block, axes)
    found = list(_sums(block, grid))
    low, high = limb_range(found)
    limbs = np.concatenate([part.window(low, high) for part in found], axis=1)
    special = np.concatenate([part.special for part in found])
    return Binned(low, grid.form.restored(limbs, 1), grid.form.restored(special))


def _sums(block: Array, grid: Grid) -> Iterator[Binned]:
    """Yield the sums in groups."""
    kernel = KERNEL("sum_grid", block.dtype.name)
    several = max(1, SUMS // grid.across) * grid.across
    for base in range(0, grid.sums, several):
        count = min(several, grid.sums - base)
        begins = range(0, grid.length, NUMBERS)
        limbs = cupy.zeros((len(begins), count, LIMBS), np.int64)
        special = cupy.zeros(count, np.uint32)
        for part, begin in zip(limbs, begins, strict=True):
            end = min(begin + NUMBERS, grid.length)
            places = map(np.int64, (base, begin, end))
            shape = (-(-count // grid.across), grid.segments)
            kernel(shape, (THREADS,), (block, part, special, *places, *grid.arguments))
        touched = np.flatnonzero(cupy.asnumpy((limbs != 0).any(axis=(0, 1))))
        first, last = (int(touched[0]), int(touched[-1])) if len(touched) else (0, -1)
        parts = np.moveaxis(cupy.asnumpy(limbs[..., first : last + 1]), -1, 1)
        marks = cupy.asnumpy(special).astype(np.uint8)
        yield merged([Binned.of(first, part, marks) for part in parts])
