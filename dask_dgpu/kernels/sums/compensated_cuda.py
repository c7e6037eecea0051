"""Compensated sums in CUDA memory: one launch that reads, and a small one that adds the rest.

Each thread has accumulators and several concurrent reads. Threads that share a sum add their
accumulators by a tree in a fixed order; the second launch does the same for thread blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cupy
import numpy as np

from dask_dgpu.kernels.sums.compensated import Pair
from dask_dgpu.kernels.sums.cuda import INDEXING, READING, THREADS, columns_of, grid_of, kernels

Array = Any

WARP = 32
FEW_SUMS = 512  # up to this number of sums, a thread block folds each; above it, a warp

SOURCE = r"""
struct Pair {
    double sum, lost;
};

__device__ __forceinline__ void add(Pair& into, double value) {
    const double total = __dadd_rn(into.sum, value);
    const double part = __dadd_rn(total, -into.sum);
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

extern "C" __global__ void __launch_bounds__(THREADS)
sum_grid(const Value* values, double* sums, double* lost, LAYOUT) {
    const Layout at = LAYOUT_OF;
    __shared__ Pair shared[THREADS];
    const int thread = threadIdx.x;
    const int column = at.near ? thread % at.across : thread / at.down;
    const int row = at.near ? thread / at.across : thread % at.down;
    const Long sum = (Long) blockIdx.x * at.across + column;
    const bool works = column < at.across && row < at.down && sum < at.kept;
    Pair mine = {0.0, 0.0};
    if (works) {
        // Stretches of about as many batches as there are stretches: what the sums of losses
        // lose themselves grows with their length only.
        Pair stretch = {0.0, 0.0};
        int batches = 0;
        const int longest = 1 + (int) sqrtf((float) (at.summed / (8 * at.segments * at.down)));
        values += offset_of(sum, at.kept_inner, at.kept_outer_stride, at.kept_inner_stride);
        const Long step = (Long) at.segments * at.down;
        Long next = (Long) blockIdx.y * at.down + row;
        for (; next + 7 * step < at.summed; next += 8 * step) {
            Value read[8];
            #pragma unroll
            for (int k = 0; k < 8; ++k)
                read[k] = values[offset_of(next + k * step, at.summed_inner,
                                           at.summed_outer_stride, at.summed_inner_stride)];
            #pragma unroll
            for (int k = 0; k < 8; ++k) take(stretch, read[k]);
            if (++batches == longest) {
                merge(mine, stretch);
                stretch.sum = stretch.lost = 0.0;
                batches = 0;
            }
        }
        for (; next < at.summed; next += step)
            take(stretch, values[offset_of(next, at.summed_inner, at.summed_outer_stride,
                                        at.summed_inner_stride)]);
        merge(mine, stretch);
    }
    shared[thread] = mine;
    __syncthreads();
    const int stride = at.near ? at.across : 1;  // threads from one row to the next
    for (int rows = at.down; rows > 1; rows = (rows + 1) / 2) {
        const int half = (rows + 1) / 2;
        if (works && row + half < rows) {
            mine = shared[thread];
            merge(mine, shared[thread + half * stride]);
            shared[thread] = mine;
        }
        __syncthreads();
    }
    if (works && row == 0) {
        sums[(Long) blockIdx.y * at.kept + sum] = shared[thread].sum;
        lost[(Long) blockIdx.y * at.kept + sum] = shared[thread].lost;
    }
}

struct Accumulators {
    Pair each[LANES] = {};
    __device__ __forceinline__ void take(const Vector (&read)[SEVERAL]) {
        EACH_NUMBER(k, j) ::take(each[j], read[k].lane[j]);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 4)
sum_columns(const Value* values, double* sums, double* lost, Long length, int columns) {
    __shared__ Pair shared[ENTRIES];
    const int thread = threadIdx.x;
    Accumulators mine;
    read_all(values, length, mine);
    #pragma unroll
    for (int j = 0; j < LANES; ++j) shared[LANES * thread + j] = mine.each[j];
    __syncthreads();
    add_rows(columns, [&](int into, int other) { merge(shared[into], shared[other]); });
    if (thread < columns) {
        const Long column = ((Long) blockIdx.x * ENTRIES + thread) % columns;
        sums[(Long) blockIdx.x * columns + column] = shared[thread].sum;
        lost[(Long) blockIdx.x * columns + column] = shared[thread].lost;
    }
}

// (segments, kept) pairs to one of each; some threads a sum, in a fixed order
extern "C" __global__ void __launch_bounds__(THREADS)
fold(const double* sums, const double* lost, double* sum, double* rest, Long kept, int segments,
     int threads) {
    __shared__ Pair shared[THREADS];
    const Long which = ((Long) blockIdx.x * THREADS + threadIdx.x) / threads;
    const int lane = threadIdx.x % threads;
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
    if (lane == 0 && which < kept) {
        sum[which] = shared[threadIdx.x].sum;
        rest[which] = shared[threadIdx.x].lost;
    }
}
"""

KERNEL = kernels(INDEXING + READING + SOURCE)


def block_sum_cuda(block: Array, axes: Sequence[int]) -> Pair:
    """Sum a block of float32 or float64 with non-negative strides, on its device."""
    dtype, columns = block.dtype.name, columns_of(block, axes)
    if columns is not None:
        form, found = columns.form, cupy.empty((2, columns.blocks, columns.columns))
        sizes = np.int64(columns.length), np.int32(columns.columns)
        KERNEL("sum_columns", dtype)((columns.blocks,), (THREADS,), (block, *found, *sizes))
    else:
        block, grid = grid_of(block, axes)
        form, found = grid.form, cupy.empty((2, grid.segments, grid.sums))
        shape = (-(-grid.sums // grid.across), grid.segments)
        KERNEL("sum_grid", dtype)(shape, (THREADS,), (block, *found, *grid.arguments))
    if found.shape[1] > 1:
        found = _folded(found, KERNEL("fold", dtype))
    return Pair(*found.reshape(2, -1)).each(form.restored)


def _folded(several: Array, fold: Any) -> Array:
    """Add pairs, (2, segments, sums), along the segments."""
    _, segments, sums = several.shape
    found = cupy.empty((2, sums))
    threads = THREADS if sums <= FEW_SUMS else WARP
    arguments = (*several, *found, np.int64(sums), np.int32(segments), np.int32(threads))
    fold((-(-threads * sums // THREADS),), (THREADS,), arguments)
    return found
