"""Compensated sums in CUDA memory: one launch that reads, and a small one that adds the rest.

Each thread has an accumulator, and keeps several reads under way. Threads that share a sum
add their accumulators by a tree in a fixed order, and so do blocks of threads in the second
launch. Multiprocessors do this at the speed of the memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import cupy
import numpy as np

from dask_dgpu.kernels.compensated import Pair
from dask_dgpu.kernels.strides_cuda import INDEXING, THREADS, grid_of

Array = Any

SOURCE = (
    INDEXING
    + r"""
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
__device__ __forceinline__ void take(Pair& into, float value) { into.sum += (double) value; }
__device__ __forceinline__ void take(Pair& into, double value) { add(into, value); }

__device__ __forceinline__ void merge(Pair& into, const Pair& other) {
    add(into, other.sum);
    into.lost = __dadd_rn(into.lost, other.lost);
}

template <typename Value>
__device__ void sum_pairs(const Value* values, double* sums, double* lost, const Layout& at) {
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

extern "C" __global__ void __launch_bounds__(THREADS)
sum_float(const float* values, double* sums, double* lost, LAYOUT) {
    const Layout at = LAYOUT_OF;
    sum_pairs(values, sums, lost, at);
}

extern "C" __global__ void __launch_bounds__(THREADS)
sum_double(const double* values, double* sums, double* lost, LAYOUT) {
    const Layout at = LAYOUT_OF;
    sum_pairs(values, sums, lost, at);
}

// (segments, kept) pairs to one of each; a warp a sum, in a fixed order
extern "C" __global__ void __launch_bounds__(THREADS)
fold(const double* sums, const double* lost, double* sum, double* rest, Long kept, int segments) {
    const Long which = ((Long) blockIdx.x * THREADS + threadIdx.x) / 32;
    const int lane = threadIdx.x % 32;
    if (which >= kept) return;
    Pair mine = {0.0, 0.0};
    for (int segment = lane; segment < segments; segment += 32) {
        const Pair other = {sums[segment * kept + which], lost[segment * kept + which]};
        merge(mine, other);
    }
    for (int half = 16; half > 0; half /= 2) {
        const Pair other = {__shfl_down_sync(~0u, mine.sum, half),
                            __shfl_down_sync(~0u, mine.lost, half)};
        merge(mine, other);
    }
    if (lane == 0) {
        sum[which] = mine.sum;
        rest[which] = mine.lost;
    }
}
"""
)


@cache
def _kernel(name: str) -> Any:
    module = cupy.RawModule(code=SOURCE, options=(f"-DTHREADS={THREADS}",))
    return module.get_function(name)


def block_sum_cuda(block: Array, axes: Sequence[int]) -> Pair:
    """Sum a block of float32 or float64, of strides that are not negative, on its device."""
    block, grid = grid_of(block, axes)
    name = "sum_float" if block.dtype == cupy.float32 else "sum_double"
    found = cupy.empty((2, grid.segments, grid.sums))
    _kernel(name)(*grid.launch, (block, found[0], found[1], *grid.arguments))
    if grid.segments > 1:
        several, found = found, cupy.empty((2, 1, grid.sums))
        blocks = (-(-32 * grid.sums // THREADS),)
        arguments = (
            several[0],
            several[1],
            found[0],
            found[1],
            np.int64(grid.sums),
            np.int32(grid.segments),
        )
        _kernel("fold")(blocks, (THREADS,), arguments)
    return Pair(found[0, 0], found[1, 0]).each(grid.form.restored)
