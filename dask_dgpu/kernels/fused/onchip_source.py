"""CUDA C++ of rows on chip."""

from __future__ import annotations

SHARE = r"""
// Gives all threads of a group what its first thread has.
template <int GROUP, class S> void share_group(S& mine) {
    if constexpr (GROUP <= 32) {
        #pragma unroll
        for (int word = 0; word < sizeof(S) / 4; ++word)
            ((int*) &mine)[word] = __shfl_sync(~0u, ((int*) &mine)[word], 0, GROUP);
    } else {
        __shared__ __align__(16) char memory[sizeof(S)];
        __syncthreads();
        if (threadIdx.x == 0) *(S*) memory = mine;
        __syncthreads();
        mine = *(S*) memory;
    }
}
"""

SOURCE = r"""
KERNEL(%(threads)d)
on_chip(%(signature)s) {
    constexpr int L = %(lanes)d, U = %(items)d, GROUP = %(group)d;
    const int lane = threadIdx.x %% GROUP;
    const Index kept = ((Index) blockIdx.x * %(threads)d + threadIdx.x) / GROUP;
    const Index where_kept = kept < results ? kept : 0;
    %(split_kept)s
    %(bases)s
    %(declared)s
    %(once)s
    #pragma unroll
    for (int u = 0; u < U; ++u) {
        const Index where = (lane + u * GROUP) * L;
        if (%(exact)d || where < length) {
            %(split_reduced)s
            %(each)s
        }
    }
    %(phases)s
    if (kept >= results) return;
    %(final)s
    if (lane == 0) {
        constexpr int j = 0;
        %(row_operands)s
        %(row_code)s
        %(row_results)s
    }
}
"""

PHASE = r"""
    %(declared)s
    {
        constexpr int N = %(exact)d ? L * U : L;  // elements of a batch
        States%(number)d all;
        all.start();
        %(arrays)s
        Index places[N];
        #pragma unroll
        for (int u = 0; u < U; ++u) {
            const Index where = (lane + u * GROUP) * L;
            %(operands)s
            #pragma unroll
            for (int j = 0; j < L; ++j) {
                const int e = (%(exact)d ? u * L : 0) + j;
                places[e] = where + j;
                %(code)s
                %(values)s
            }
            if (u == 0) { %(seed)s }
            if (!%(exact)d && where < length) { %(take)s }
        }
        if (%(exact)d) { %(take)s }
        merge_group<GROUP, %(threads)d>(all, lane);
        share_group<GROUP>(all);
        %(results)s
    }
"""

RESULT = r"""
    #pragma unroll
    for (int u = 0; u < U; ++u) {
        const Index where = (lane + u * GROUP) * L;
        %(operands)s
        %(results)s
        #pragma unroll
        for (int j = 0; j < L; ++j) {
            %(code)s
            %(values)s
        }
        if (%(exact)d || where < length) { %(stores)s }
    }
"""
