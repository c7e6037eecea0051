"""Kernels for elementwise work: each thread reads, computes and writes 16 bytes of neighbours."""

from __future__ import annotations

from collections.abc import Sequence

from dask_dgpu.kernels.fused.kernel import THREADS, Launch
from dask_dgpu.kernels.fused.layout import Domain, stores, written
from dask_dgpu.kernels.fused.prelude import QUICK
from dask_dgpu.kernels.fused.source import Code, Known

ALONE = 4
"""Elements that a thread computes if it cannot read several neighbours at once."""

SOURCE = r"""
template <int N> struct Lanes { static constexpr int value = N; };
template <bool Q> struct Quick { static constexpr bool value = Q; };

KERNEL(%(bounds)s)
%(name)s(%(signature)s) {
    %(bases)s
    auto work = [&](auto lanes, const Index where) {
        constexpr int L = decltype(lanes)::value;
        %(split_reduced)s
        %(loads)s
        %(results)s
        int plain = 1;
        auto all = [&](auto quick) {
            const Divide<decltype(quick)::value> np_divide{plain};
            const Root<decltype(quick)::value> np_sqrt{plain};
            #pragma unroll
            for (int j = 0; j < L; ++j) {
                %(code)s
                %(values)s
            }
        };
        all(Quick<true>{});
        if (!plain) all(Quick<false>{});
        %(stores)s
    };
    constexpr int STEP = %(threads)d * %(lanes)d;
    const Index first = (Index) blockIdx.x * STEP * %(items)d + threadIdx.x * %(lanes)d;
    if (first + (%(items)d - 1) * STEP + %(lanes)d <= length) {
        #pragma unroll
        for (int item = 0; item < %(items)d; ++item) work(Lanes<%(lanes)d>{}, first + item * STEP);
    } else
        for (int item = 0; item < %(items)d; ++item)
            for (int j = 0; j < %(lanes)d; ++j)
                if (first + item * STEP + j < length) work(Lanes<1>{}, first + item * STEP + j);
}
"""


def elementwise(nodes: Sequence[int], known: Known) -> Launch:
    """Return the launch that computes nodes of one shape, none of them empty."""
    shape = known.node_types[nodes[0]].shape
    domain = Domain(known, shape, range(len(shape)))
    code = Code(domain)
    values = [code.value(at, domain.everywhere) for at in nodes]
    domain.walk()
    walk, kinds = domain.reduced, domain.kinds(nodes)
    lanes = domain.lanes_along(walk, domain.kept, whole=False, results=nodes)
    items = ALONE if lanes == 1 else 1
    grid = -(-walk.size // (THREADS * lanes * items)), 1
    entry = domain.entry("fused", written(kinds), {"length": walk.size}, grid)
    source = SOURCE % {
        **domain.macros(entry),
        **stores([*zip(range(len(nodes)), kinds, values, strict=True)], "where"),
        "lanes": lanes,
        "items": items,
        "loads": "\n        ".join(
            f"Vector<{each.kind}, L> {each.name}; {domain.load(each, each.name, walk)}"
            for each in domain.read
        ),
        "code": "\n                ".join(code.lines),
    }
    outputs = [domain.output(at, whole=True) for at in nodes]
    return domain.launch(QUICK + source, [entry], outputs)
