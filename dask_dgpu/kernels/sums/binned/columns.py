"""Exact sums of one run of CUDA memory in a few columns, at the speed of the memory.

Each accumulator splits its numbers at two levels (``cuts.py``). Threads start with common
levels and raise them for larger numbers. Threads with the same levels add their parts as
integers by a tree, so that few atomic additions remain.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import cupy
import numpy as np

from dask_dgpu.kernels.sums import cuts as cuts_cuda
from dask_dgpu.kernels.sums import limbs_cuda
from dask_dgpu.kernels.sums.binned import Binned, PendingBinned, merged
from dask_dgpu.kernels.sums.columns import READING, Columns
from dask_dgpu.kernels.sums.lanes import Form
from dask_dgpu.kernels.sums.limbs import LIMBS, trimmed
from dask_dgpu.kernels.sums.strides import INDEXING, THREADS, kernel_of

Array = Any

SOURCE = (
    INDEXING
    + limbs_cuda.DEPOSIT
    + READING
    + cuts_cuda.CUTS
    + r"""
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
        add_rows<ENTRIES>(columns, [&](int into, int other) {
            firsts[into] += firsts[other];
            seconds[into] += seconds[other];
        });
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

CONSTANTS = {**limbs_cuda.CONSTANTS, **cuts_cuda.CONSTANTS, "THREADS": THREADS}


@cache
def _kernel(name: str) -> Any:
    return kernel_of(SOURCE, CONSTANTS, name)


def columns_sum_cuda(block: Array, columns: Columns) -> Binned:
    """Sum the columns of a block of float32 or float64 exactly; the host does not wait."""
    kernel = _kernel("sum_columns_float" if block.dtype == cupy.float32 else "sum_columns_double")
    count, most = columns.columns, limbs_cuda.NUMBERS * columns.columns
    begins = range(0, columns.length, most)
    words = cupy.zeros((len(begins) + 1, count, LIMBS), np.int64)  # the last one has the flags
    for limbs, begin in zip(words, begins, strict=False):
        numbers = block.data + begin * block.itemsize
        sizes = (np.int64(min(most, columns.length - begin)), np.int32(count))
        kernel(*columns.launch, (numbers, limbs, words[-1], *sizes))
    stream = cupy.cuda.get_current_stream()  # the reader may be on another stream
    return PendingBinned(lambda: _found(words.get(stream), columns.form), words.nbytes)


def _found(words: Array, form: Form) -> Binned:
    """Return the sums in the words of a device."""
    *parts, marks = words
    special = marks.reshape(-1).view(np.uint32)[: marks.shape[0]].astype(np.uint8)
    sums = []
    for part in parts:
        first, used = trimmed(part.T)
        sums.append(Binned.of(first, used, special))
    whole = merged(sums) if len(sums) > 1 else sums[0]
    return Binned(whole.low, form.restored(whole.limbs, 1), form.restored(whole.special))
