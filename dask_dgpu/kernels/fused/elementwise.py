"""Kernels for elementwise work: each thread reads, computes and writes 16 bytes of neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dask_dgpu.kernels.fused.device_functions import stored_type
from dask_dgpu.kernels.fused.kernel import (
    THREADS,
    Array,
    Entry,
    Launch,
    constants,
    output,
)
from dask_dgpu.kernels.fused.layout import (
    index_type,
    lanes_of,
    loads,
    order_of,
    scalars,
    strides_along,
    walk_of,
)
from dask_dgpu.kernels.fused.prelude import PRELUDE, QUICK
from dask_dgpu.kernels.fused.source import Code, Context, signature_of
from dask_dgpu.kernels.fused.typed import Typed
from graph_opt.model.expression import Node

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


def elementwise(
    results: Sequence[int],
    nodes: Sequence[Node],
    found: Sequence[Typed],
    arrays: Mapping[int, Array],
) -> Launch:
    """Return the launch that computes nodes of one shape, none of them empty."""
    shape = found[results[0]].shape
    context = Context(nodes, found, arrays.keys(), {}, {})
    code = Code(context)
    everywhere = tuple(axis if length != 1 else None for axis, length in enumerate(shape))
    values = [code.value(at, everywhere) for at in results]
    operands = tuple(context.operands)
    described = [arrays[operand.node] for operand in operands]
    strides = [
        strides_along(operand.axes, array.strides, array.shape, len(shape))
        for operand, array in zip(operands, described, strict=True)
    ]
    order = order_of(range(len(shape)), strides)
    walk = walk_of("d", order, shape, strides)
    sizes = [array.dtype.itemsize for array in described]
    written = [found[at].dtype for at in results]
    aligned = [array.aligned for array in described]
    lanes = lanes_of(
        walk, None, sizes, aligned, whole=False, results=[dtype.itemsize for dtype in written]
    )
    items = ALONE if lanes == 1 else 1
    index, kinds = index_type(walk), [stored_type(dtype) for dtype in written]
    signature = signature_of(context, kinds, f"{walk.declared()}const Index size")
    source = SOURCE % {
        "index": index,
        "threads": THREADS,
        "lanes": lanes,
        "items": items,
        "signature": signature,
        "split": walk.split("first"),
        "loads": "\n        ".join(
            f"Vector<{stored_type(array.dtype)}, L> {name}; "
            + loads(
                name,
                stored_type(array.dtype),
                walk.offset(at),
                walk.inner[at],
                walk.step(at),
                lanes="L",
                pointer=f"p_{name}",
            )
            for at, (name, array) in enumerate(
                zip(context.operands.values(), described, strict=True)
            )
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
    return Launch(
        PRELUDE + QUICK + source,
        Entry("fused", signature, str(THREADS)),
        (-(-walk.size // (THREADS * lanes * items)),),
        operands,
        constants(context),
        tuple(
            output(at, dtype, shape, shape, order)
            for at, dtype in zip(results, written, strict=True)
        ),
        tuple(scalars(index, [*walk.arguments(), walk.size])),
    )
