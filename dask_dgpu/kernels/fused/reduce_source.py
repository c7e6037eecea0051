"""CUDA C++ of reductions: along rows, along columns, and of the states of segments."""

from __future__ import annotations

FOLD = r"""
KERNEL(%(threads)d)
fold(%(fold_signature)s) {
    const Index kept = ((Index) blockIdx.x * %(threads)d + threadIdx.x) / %(folding)d;
    const int lane = threadIdx.x %% %(folding)d;
    States mine;
    mine.start();
    if (kept < results)
        for (int segment = lane; segment < segments; segment += %(folding)d)
            mine.merge(partials[(Long) segment * results + kept]);
    merge_group<%(folding)d, %(threads)d>(mine, lane);
    if (kept < results && lane == 0) write(mine, kept, length, %(out_names)s0);
}
"""

SEED_ROWS = """States first;
        first.start_unshifted();
        take(Count<1>{}, Count<1>{}, first, 0);
        all.shift_by(first);
        some.shift_by(first);"""

SEED_COLUMNS = """States first[L];
        #pragma unroll
        for (int j = 0; j < L; ++j) first[j].start_unshifted();
        take(Count<1>{}, first, 0);
        #pragma unroll
        for (int j = 0; j < L; ++j) { all[j].shift_by(first[j]); some[j].shift_by(first[j]); }"""

ROWS = r"""%(prelude)s
KERNEL(%(threads)d)
rows(%(signature)s) {
    const int lane = threadIdx.x %% %(group)d;
    const Index kept = ((Index) blockIdx.x * %(threads)d + threadIdx.x) / %(group)d;
    const Index where_kept = kept < results ? kept : 0;
    %(split_kept)s
    %(bases)s
    auto take = [&](auto loads_, auto lanes_, States& into, const Index first) {
        constexpr int U = decltype(loads_)::value, L = decltype(lanes_)::value;
        %(vectors)s
        %(arrays_rows)s
        Index places[U * L];
        #pragma unroll
        for (int u = 0; u < U; ++u) {
            const Index where = first + u * %(group)d * L;
            %(split_reduced)s
            %(loads_rows)s
        }
        #pragma unroll
        for (int u = 0; u < U; ++u) {
            %(lanes_of_u)s
            #pragma unroll
            for (int j = 0; j < L; ++j) {
                places[u * L + j] = first + u * %(group)d * L + j;
                %(code)s
                %(values_rows)s
            }
        }
        %(take_rows)s
    };
    States all, some;
    all.start();
    some.start();
    if (kept < results) {
        %(seed_rows)s
        const Index begin = (Index) blockIdx.y * stretch;
        const Index end = length - begin < stretch ? length : begin + stretch;
        constexpr Index STEP = %(group)d * %(lanes)d;
        Index at = begin + lane * %(lanes)d;
        int batches = 0;
        for (; at + (%(deep)d - 1) * STEP + %(lanes)d <= end; at += %(deep)d * STEP) {
            take(Count<%(deep)d>{}, Count<%(lanes)d>{}, some, at);
            if (++batches == %(batches)d) {
                all.merge(some);
                some.start();
                batches = 0;
            }
        }
        for (; at + %(lanes)d <= end; at += STEP)
            take(Count<1>{}, Count<%(lanes)d>{}, some, at);
        for (; at < end; ++at) take(Count<1>{}, Count<1>{}, some, at);
        all.merge(some);
    }
    merge_group<%(group)d, %(threads)d>(all, lane);
    if (kept < results && lane == 0) {
        if (gridDim.y > 1) partials[(Long) blockIdx.y * results + kept] = all;
        else write(all, kept, length, %(out_names)s0);
    }
}
"""

COLUMNS = r"""%(prelude)s
KERNEL(%(threads)d, %(resident)d)
columns(%(signature)s) {
    constexpr int L = %(lanes)d, DOWN = %(threads)d / %(across)d;
    const int row = threadIdx.x / %(across)d;
    const Index kept = ((Index) blockIdx.x * %(across)d + threadIdx.x %% %(across)d) * L;
    const Index where_kept = kept < results ? kept : 0;
    %(split_kept)s
    %(bases)s
    auto take = [&](auto loads_, States (&into)[L], const Index first) {
        constexpr int U = decltype(loads_)::value;
        %(vectors)s
        %(arrays_columns)s
        Index places[U];
        #pragma unroll
        for (int u = 0; u < U; ++u) {
            const Index where = first + u * DOWN;
            places[u] = where;
            %(split_reduced)s
            %(loads_columns)s
        }
        #pragma unroll
        for (int u = 0; u < U; ++u) {
            %(lanes_of_u)s
            #pragma unroll
            for (int j = 0; j < L; ++j) {
                %(code)s
                %(values_columns)s
            }
        }
        #pragma unroll
        for (int j = 0; j < L; ++j) { %(take_columns)s }
    };
    States all[L], some[L];
    #pragma unroll
    for (int j = 0; j < L; ++j) { all[j].start(); some[j].start(); }
    if (kept < results) {
        %(seed_columns)s
        const Index begin = (Index) blockIdx.y * stretch;
        const Index end = length - begin < stretch ? length : begin + stretch;
        Index at = begin + row;
        int batches = 0;
        for (; at + (%(deep)d - 1) * DOWN < end; at += %(deep)d * DOWN) {
            take(Count<%(deep)d>{}, some, at);
            if (++batches == %(batches)d) {
                #pragma unroll
                for (int j = 0; j < L; ++j) { all[j].merge(some[j]); some[j].start(); }
                batches = 0;
            }
        }
        for (; at < end; at += DOWN) take(Count<1>{}, some, at);
        #pragma unroll
        for (int j = 0; j < L; ++j) all[j].merge(some[j]);
    }
    __shared__ __align__(16) char memory[%(threads)d * sizeof(States)];
    States* shared = (States*) memory;
    #pragma unroll
    for (int j = 0; j < L; ++j) {
        __syncthreads();
        shared[threadIdx.x] = all[j];
        #pragma unroll 1
        for (int half = DOWN / 2; half; half /= 2) {
            __syncthreads();
            if (row < half) {
                all[j].merge(shared[threadIdx.x + half * %(across)d]);
                shared[threadIdx.x] = all[j];
            }
        }
        if (row == 0 && kept < results) {
            if (gridDim.y > 1) partials[(Long) blockIdx.y * results + kept + j] = all[j];
            else write(all[j], kept + j, length, %(out_names)s0);
        }
    }
}
"""
