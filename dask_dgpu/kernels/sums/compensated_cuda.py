"""Compensated sums in CUDA memory: one launch that reads, and a small one that adds the rest.

Each thread has accumulators and several concurrent reads. Threads that share a sum add their
accumulators by a tree in a fixed order; the second launch does the same for thread blocks.

The host waits for nothing. Doubles whose sum could overflow are set apart as they are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cupy
import numpy as np

from dask_dgpu.kernels.sums.compensated import Pair
from dask_dgpu.kernels.sums.cuda import (
    INDEXING,
    READING,
    THREADS,
    WARP,
    columns_of,
    grid_of,
    kernels,
)

Array = Any

FEW_SUMS = 512  # up to this number of sums, a thread block folds each; above it, a warp


SOURCE = r"""
#define UNIT 5.421010862427522e-20  // 2**-64
constexpr bool DOUBLES = sizeof(Value) == 8;

struct Pair {
    double sum, lost;
};

__device__ __forceinline__ void add(Pair& into, double value) {
    const double total = __dadd_rn(into.sum, value), part = __dadd_rn(total, -into.sum);
    const double error = __dadd_rn(__dadd_rn(into.sum, -__dadd_rn(total, -part)),
                                   __dadd_rn(value, -part));
    into.lost = __dadd_rn(into.lost, error);
    into.sum = total;
}

// single precision is exact in double
__device__ __forceinline__ void take(Pair& into, float value) { into.sum += widened(value); }
__device__ __forceinline__ void take(Pair& into, double value) { add(into, value); }

__device__ __forceinline__ void merge(Pair& into, const Pair& other) {
    add(into, other.sum);
    into.lost = __dadd_rn(into.lost, other.lost);
}

// Moves doubles that are too large, infinite, or NaN to a sum of their own, in units of 2**64.
__device__ __forceinline__ bool too_large(Value value) {
    return DOUBLES && !(fabs(widened(value)) < TOO_LARGE);
}
__device__ __forceinline__ void set_apart(Pair& large, Value& value) {
    if (!too_large(value)) return;
    add(large, widened(value) * UNIT);
    value = 0;
}

// Writes one of ``count`` sums; its arrays are the two of a pair, and two of large numbers.
__device__ __forceinline__ void write(double* found, Long count, Long which, int pair,
                                      const Pair& value) {
    found[2 * pair * count + which] = value.sum;
    found[(2 * pair + 1) * count + which] = value.lost;
}

extern "C" __global__ void __launch_bounds__(THREADS)
sum_grid(const Value* values, double* found, LAYOUT) {
    __shared__ Pair shared[THREADS];
    const int thread = threadIdx.x;
    const int column = near ? thread % across : thread / down;
    const int row = near ? thread / across : thread % down;
    const Long sum = (Long) blockIdx.x * across + column;
    const bool works = column < across && row < down && sum < kept;
    Pair mine = {0.0, 0.0}, large = {0.0, 0.0};
    if (works) {
        // Stretches of about as many batches as there are stretches: what the sums of losses
        // lose themselves grows with their length only.
        Pair stretch = {0.0, 0.0};
        int batches = 0;
        const int longest = 1 + (int) sqrtf((float) (summed / (8 * segments * down)));
        values += offset_of(sum, kept_inner, kept_outer_stride, kept_inner_stride);
        const auto number = [&](Long which) {
            return values[offset_of(which, summed_inner, summed_outer_stride, summed_inner_stride)];
        };
        const Long step = (Long) segments * down;
        Long next = (Long) blockIdx.y * down + row;
        for (; next + 7 * step < summed; next += 8 * step) {
            Value read[8];
            #pragma unroll
            for (int k = 0; k < 8; ++k) read[k] = number(next + k * step);
            bool any = false;
            #pragma unroll
            for (int k = 0; k < 8; ++k) any |= too_large(read[k]);
            if (any) {
                #pragma unroll
                for (int k = 0; k < 8; ++k) set_apart(large, read[k]);
            }
            #pragma unroll
            for (int k = 0; k < 8; ++k) take(stretch, read[k]);
            if (++batches == longest) {
                merge(mine, stretch);
                stretch.sum = stretch.lost = 0.0;
                batches = 0;
            }
        }
        for (; next < summed; next += step) {
            Value value = number(next);
            set_apart(large, value);
            take(stretch, value);
        }
        merge(mine, stretch);
    }
    const int stride = near ? across : 1;  // threads from one row to the next
    const Long count = (Long) segments * kept, which = (Long) blockIdx.y * kept + sum;
    for (int pair = 0; pair < (DOUBLES ? 2 : 1); ++pair) {
        if (pair) mine = large;
        shared[thread] = mine;
        __syncthreads();
        for (int rows = down; rows > 1; rows = (rows + 1) / 2) {
            const int half = (rows + 1) / 2;
            if (works && row + half < rows) {
                mine = shared[thread];
                merge(mine, shared[thread + half * stride]);
                shared[thread] = mine;
            }
            __syncthreads();
        }
        if (works && row == 0) write(found, count, which, pair, shared[thread]);
        __syncthreads();
    }
}

struct Accumulators {
    Pair each[LANES] = {};
    Pair* large = nullptr;  // of this thread, in shared memory
    __device__ __forceinline__ void take(Vector (&read)[SEVERAL]) {
        bool any = false;
        EACH_NUMBER(k, j) any |= too_large(read[k].lane[j]);
        if (any) EACH_NUMBER(k, j) set_apart(large[j], read[k].lane[j]);
        EACH_NUMBER(k, j) ::take(each[j], read[k].lane[j]);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 4)
sum_columns(const Value* values, double* found, Long length, int columns) {
    __shared__ Pair shared[ENTRIES], large[DOUBLES ? ENTRIES : 1];
    const int thread = threadIdx.x;
    Accumulators mine;
    if (DOUBLES) {
        mine.large = large + LANES * thread;
        #pragma unroll
        for (int j = 0; j < LANES; ++j) mine.large[j].sum = mine.large[j].lost = 0.0;
    }
    read_all(values, length, mine);
    #pragma unroll
    for (int j = 0; j < LANES; ++j) shared[LANES * thread + j] = mine.each[j];
    __syncthreads();
    add_rows(columns, [&](int into, int other) { merge(shared[into], shared[other]); });
    if (DOUBLES) add_rows(columns, [&](int into, int other) { merge(large[into], large[other]); });
    if (thread < columns) {
        const Long column = ((Long) blockIdx.x * ENTRIES + thread) % columns;
        const Long count = (Long) gridDim.x * columns, which = (Long) blockIdx.x * columns + column;
        write(found, count, which, 0, shared[thread]);
        if (DOUBLES) write(found, count, which, 1, large[thread]);
    }
}

// (segments, kept) pairs to one of each; some threads a sum, in a fixed order; a row of thread
// blocks for each of the pairs of a sum
extern "C" __global__ void __launch_bounds__(THREADS)
fold(const double* found, double* folded, Long kept, int segments, int threads) {
    __shared__ Pair shared[THREADS];
    const Long which = ((Long) blockIdx.x * THREADS + threadIdx.x) / threads;
    const int lane = threadIdx.x % threads, pair = blockIdx.y;
    const double* sums = found + 2 * pair * segments * kept;
    const double* lost = sums + segments * kept;
    Pair mine = {0.0, 0.0};
    if (which < kept)
        for (int segment = lane; segment < segments; segment += threads) {
            const Pair other = {sums[segment * kept + which], lost[segment * kept + which]};
            merge(mine, other);
        }
    shared[threadIdx.x] = mine;
    __syncthreads();
    for (int half = threads / 2; half > 0; half /= 2) {
        if (lane < half) merge(shared[threadIdx.x], shared[threadIdx.x + half]);
        __syncthreads();
    }
    if (lane == 0 && which < kept) write(folded, kept, which, pair, shared[threadIdx.x]);
}
"""

KERNEL = kernels(INDEXING + READING + SOURCE)


def block_sum_cuda(block: Array, axes: Sequence[int]) -> Pair:
    """Sum a block of float32 or float64 with non-negative strides, on its device.

    The pairs of doubles have a large part.
    """
    dtype, columns = block.dtype.name, columns_of(block, axes)
    arrays = 4 if dtype == "float64" else 2
    if columns is not None:
        form, found = columns.form, cupy.empty((arrays, columns.blocks, columns.columns))
        sizes = np.int64(columns.length), np.int32(columns.columns)
        KERNEL("sum_columns", dtype)((columns.blocks,), (THREADS,), (block, found, *sizes))
    else:
        block, grid = grid_of(block, axes)
        form, found = grid.form, cupy.empty((arrays, grid.segments, grid.sums))
        shape = (-(-grid.sums // grid.across), grid.segments)
        KERNEL("sum_grid", dtype)(shape, (THREADS,), (block, found, *grid.arguments))
    if found.shape[1] > 1:
        found = _folded(found, KERNEL("fold", dtype))
    return Pair(*map(form.restored, found.reshape(arrays, -1)))


def _folded(several: Array, fold: Any) -> Array:
    """Add pairs, (arrays, segments, sums), along the segments."""
    arrays, segments, sums = several.shape
    found = cupy.empty((arrays, sums))
    threads = THREADS if sums <= FEW_SUMS else WARP
    arguments = (several, found, np.int64(sums), np.int32(segments), np.int32(threads))
    fold((-(-threads * sums // THREADS), arrays // 2), (THREADS,), arguments)
    return found
