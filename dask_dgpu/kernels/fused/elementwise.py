"""Kernels for elementwise work: each thread reads, computes and writes 16 bytes of neighbours."""

from __future__ import annotations

from collections.abc import Sequence

from dask_dgpu.kernels.fused.device_functions import stored_type
from dask_dgpu.kernels.fused.kernel import THREADS, Launch
from dask_dgpu.kernels.fused.layout import Domain, written
from dask_dgpu.kernels.fused.prelude import PRELUDE, QUICK
from dask_dgpu.kernels.fused.source import Code, Known

ALONE = 4
"""Elements that a thread computes if it cannot read several neighbours at once."""

SOURCE = r"""
typedef %(index)s Index;
template <int N> struct Lanes { static constexpr int value = N; };
template <bool Q> struct Quick { static constexpr bool value = Q; };

KERNEL(%(threads)d)
fused(%(signature)s) {
    auto work = [&](auto lanes, const Index first) {
        constexpr int L = decltype(lanes)::value;
        %(split)s
        %(loads)s
        %(results)s
        int plain = 1;
        auto all = [&](auto quick) {
            const Divide<decltype(quick)::value> np_divide{plain};
            const Root<decltype(quick)::value> np_sqrt{plain};
            #pragma unroll
            for (int j = 0; j < L; ++j) {
                %(code)s
            }
        };
        all(Quick<true>{});
        if (!plain) all(Quick<false>{});
        %(stores)s
    };
    constexpr int STEP = %(threads)d * %(lanes)d;
    const Index first = (Index) blockIdx.x * STEP * %(items)d + threadIdx.x * %(lanes)d;
    if (first + (%(items)d - 1) * STEP + %(lanes)d <= size) {
        #pragma unroll
        for (int item = 0; item < %(items)d; ++item) work(Lanes<%(lanes)d>{}, first + item * STEP);
    } else
        for (int item = 0; item < %(items)d; ++item)
            for (int j = 0; j < %(lanes)d; ++j)
                if (first + item * STEP + j < size) work(Lanes<1>{}, first + item * STEP + j);
}
"""


def elementwise(results: Sequence[int], known: Known) -> Launch:
    """Return the launch that computes nodes of one shape, none of them empty."""
    domain = Domain(known, known.found[results[0]].shape)
    code = Code(domain)
    values = [code.value(at, domain.everywhere) for at in results]
    domain.walk()
    dtypes = [known.found[at].dtype for at in results]
    kinds, walk = [stored_type(dtype) for dtype in dtypes], domain.kept
    sizes = [dtype.itemsize for dtype in dtypes]
    lanes = domain.lanes_along(walk, domain.reduced, whole=False, results=sizes)
    items = ALONE if lanes == 1 else 1
    grid = -(-walk.size // (THREADS * lanes * items)), 1
    entry = domain.entry("fused", written(kinds), ["const Index size"], [walk.size], grid)
    source = SOURCE % {
        "index": domain.index,
        "threads": THREADS,
        "lanes": lanes,
        "items": items,
        "signature": entry.signature,
        "split": walk.split("first"),
        "loads": "\n        ".join(
            f"Vector<{kind}, L> {name}; {domain.loads(at, name, walk, 'p')}"
            for at, (name, kind) in enumerate(zip(domain.names, domain.kinds, strict=True))
        ),
        "results": " ".join(f"Vector<{kind}, L> r{at};" for at, kind in enumerate(kinds)),
        "code": "\n                ".join(
            [
                *code.lines,
                *(
                    f"r{at}.lane[j] = stored<{kind}>({value});"
                    for at, (kind, value) in enumerate(zip(kinds, values, strict=True))
                ),
            ]
        ),
        "stores": " ".join(
            f"*(Vector<{kind}, L>*) (out{at} + first) = r{at};" for at, kind in enumerate(kinds)
        ),
    }
    outputs = tuple(map(domain.output, results))
    return Launch(PRELUDE + QUICK + source, (entry,), domain.read(), outputs)
