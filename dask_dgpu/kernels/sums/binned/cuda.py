"""Exact sums in CUDA memory: one launch that reads, and integers that are added to limbs.

Each thread splits its numbers at two levels, like the loops for NumPy, and adds the parts
exactly. The levels change when a number does not fit; digits below both levels go to the limbs.
Threads with the same levels add their parts as integers, and one of them adds the sum to the
limbs by atomic additions, whose order does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import cupy
import numpy as np

from dask_dgpu.kernels.sums import limbs_cuda
from dask_dgpu.kernels.sums.binned import Binned, limb_range, merged
from dask_dgpu.kernels.sums.binned.columns import columns_sum_cuda
from dask_dgpu.kernels.sums.columns import columns_of
from dask_dgpu.kernels.sums.cuts import HUGE_POWER
from dask_dgpu.kernels.sums.limbs import LIMBS
from dask_dgpu.kernels.sums.limbs_cuda import NUMBERS
from dask_dgpu.kernels.sums.strides import INDEXING, THREADS, Grid, grid_of, kernel_of

Array = Any

SUMS = 1 << 16
"""Most sums with limbs on the device at a time."""

BATCH = 8
"""Concurrent reads of a thread."""

COUNT_BITS = 13
DIGITS = 53 - COUNT_BITS
ROUND = 8
"""Levels are multiples of this, so that threads usually have the same levels."""

SOURCE = (
    INDEXING
    + limbs_cuda.DEPOSIT
    + r"""
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

template <typename Value>
__device__ void sum_cuts(const Value* values, Word* limbs, unsigned int* special, Long base,
                         Long begin, Long end, const Layout& at) {
    __shared__ Long first[THREADS], second[THREADS];
    __shared__ int levels[THREADS];
    const int thread = threadIdx.x;
    const int column = at.near ? thread % at.across : thread / at.down;
    const int row = at.near ? thread / at.across : thread % at.down;
    const Long sum = base + (Long) blockIdx.x * at.across + column;
    const bool works = column < at.across && row < at.down && sum < at.kept;
    const Sums to = {limbs + (sum - base) * LIMBS, special + (sum - base)};
    Cuts cuts = {0.0, 0.0, 0.0, 0.0, 0, NONE, NONE, 0};
    if (works) {
        values += offset_of(sum, at.kept_inner, at.kept_outer_stride, at.kept_inner_stride);
        const Long step = (Long) at.segments * at.down;
        Long next = begin + (Long) blockIdx.y * at.down + row;
        while (next < end) {
            Value read[BATCH];
            int taken = 0;
            #pragma unroll
            for (int k = 0; k < BATCH; ++k, next += step)
                if (next < end) {
                    read[k] = values[offset_of(next, at.summed_inner, at.summed_outer_stride,
                                               at.summed_inner_stride)];
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
    const int stride = at.near ? at.across : 1;  // threads from one row to the next
    for (int rows = at.down; rows > 1; rows = (rows + 1) / 2) {
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

extern "C" __global__ void __launch_bounds__(THREADS)
sum_float(const float* values, Word* limbs, unsigned int* special, Long base, Long begin,
          Long end, LAYOUT) {
    const Layout at = LAYOUT_OF;
    sum_cuts(values, limbs, special, base, begin, end, at);
}

extern "C" __global__ void __launch_bounds__(THREADS)
sum_double(const double* values, Word* limbs, unsigned int* special, Long base, Long begin,
           Long end, LAYOUT) {
    const Layout at = LAYOUT_OF;
    sum_cuts(values, limbs, special, base, begin, end, at);
}
"""
)

CONSTANTS = {
    **limbs_cuda.CONSTANTS,
    "BATCH": BATCH,
    "THREADS": THREADS,
    "COUNT_BITS": COUNT_BITS,
    "DIGITS": DIGITS,
    "HUGE_POWER": HUGE_POWER,
    "ROUND": ROUND,
    "NONE": "(-(1 << 20))",
}


@cache
def _kernel(name: str) -> Any:
    return kernel_of(SOURCE, CONSTANTS, name)


def block_sum_cuda(block: Array, axes: Sequence[int]) -> Binned:
    """Sum a block of float32 or float64 with non-negative strides exactly.

    The host does not wait for the sums of one run of a few columns.
    """
    columns = columns_of(block, axes)
    if columns is not None:
        return columns_sum_cuda(block, columns)
    block, grid = grid_of(block, axes)
    found = list(_sums(block, grid))
    low, high = limb_range(found)
    limbs = np.concatenate([part.window(low, high) for part in found], axis=1)
    special = np.concatenate([part.special for part in found])
    return Binned(low, grid.form.restored(limbs, 1), grid.form.restored(special))


def _sums(block: Array, grid: Grid) -> Iterator[Binned]:
    """Yield the sums in groups."""
    kernel = _kernel("sum_float" if block.dtype == cupy.float32 else "sum_double")
    (_, segments), threads = grid.launch
    several = max(1, SUMS // grid.across) * grid.across
    for base in range(0, grid.sums, several):
        count = min(several, grid.sums - base)
        begins = range(0, grid.length, NUMBERS)
        limbs = cupy.zeros((len(begins), count, LIMBS), np.int64)
        special = cupy.zeros(count, np.uint32)
        for part, begin in zip(limbs, begins, strict=True):
            end = min(begin + NUMBERS, grid.length)
            places = map(np.int64, (base, begin, end))
            shape = (-(-count // grid.across), segments)
            kernel(shape, threads, (block, part, special, *places, *grid.arguments))
        touched = np.flatnonzero(cupy.asnumpy((limbs != 0).any(axis=(0, 1))))
        first, last = (int(touched[0]), int(touched[-1])) if len(touched) else (0, -1)
        parts = np.moveaxis(cupy.asnumpy(limbs[..., first : last + 1]), -1, 1)
        marks = cupy.asnumpy(special).astype(np.uint8)
        yield merged([Binned.of(first, part, marks) for part in parts])
