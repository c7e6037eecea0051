"""Sweeps on the current CuPy stream: kernels for the taps, the dtype and the axes.

Offsets and weights are constants in the source. A sweep of few taps only reads its input, once
from memory and otherwise from the caches, and writes its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import cupy
import numpy as np

from dask_dgpu.kernels.stencil import Region, Taps, sweeps_at_once
from dask_dgpu.kernels.stencil.march import MOST_BLOCKS, TYPES, literal, march

Array = Any

WIDTH, HEIGHT = 64, 4
"""Threads of a thread block along rows and across them."""

ROWS = 4
"""Rows of each thread, if there are many."""

SOURCE = r"""
#include <cupy/complex.cuh>
typedef long long Long;
typedef %(value)s Value;

__device__ double square(float x) { return (double) x * x; }
__device__ double square(double x) { return x * x; }
template <typename Real> __device__ double square(complex<Real> x) {
    return square(x.real()) + square(x.imag());
}

extern "C" __global__ void __launch_bounds__(%(threads)d)
sweep(const Value* __restrict__ u, Value* __restrict__ out, const Value* __restrict__ added,
      double* change, Long rows, Long first, Long length, %(parameters)s) {
    %(begin)s
    const Long along = (Long) blockIdx.x * blockDim.x + threadIdx.x;
    for (Long row = (Long) blockIdx.y * blockDim.y + threadIdx.y; row < rows;
         row += (Long) gridDim.y * blockDim.y) {
        if (along >= length) break;
        Long at = first + along;
        %(rest)s
        %(walk)s
        const Value value = %(sum)s;
        out[at] = value;
        %(measure)s
    }
    %(reduce)s
}
"""

REDUCE = r"""
    for (int lane = 16; lane; lane /= 2) changed += __shfl_down_sync(0xffffffffu, changed, lane);
    if ((threadIdx.y * blockDim.x + threadIdx.x) % 32 == 0 && changed != 0)
        atomicAdd(change, changed);
"""


def sweeps_cuda(
    source: Array,
    target: Array,
    taps: Taps,
    regions: Sequence[Region],
    added: Array | None = None,
    change: Array | None = None,
) -> bool:
    """Sweep back and forth between two arrays; as ``stencil.sweeps`` does."""
    together = sweeps_at_once("cuda", taps)
    u, out, turned = source, target, False
    for i in range(0, len(regions), together):
        several = regions[i : i + together]
        measured = change if i + together >= len(regions) else None
        if len(several) > 1:
            march(out, u, taps, several, added, measured)
        else:
            _sweep(out, u, taps, several[0], added, measured)
        u, out, turned = out, u, not turned
    return turned


def _sweep(
    out: Array, u: Array, taps: Taps, region: Region, added: Array | None, change: Array | None
) -> None:
    """Compute one region, by one launch."""
    counts = [along.stop - along.start for along in region]
    if min(counts) <= 0:
        return
    strides = [step // u.itemsize for step in u.strides]
    first = sum(along.start * step for along, step in zip(region, strides, strict=True))
    rows, length = prod(counts[:-1]), counts[-1]
    deep = -(-rows // HEIGHT)
    grid = -(-length // WIDTH), min(MOST_BLOCKS, -(-deep // ROWS) if deep > ROWS else deep)
    kernel = _kernel(taps, u.dtype.name, added is not None, change is not None)
    kernel(
        grid,
        (WIDTH, HEIGHT),
        (
            u,
            out,
            u if added is None else added,
            np.uint64(0) if change is None else change,
            np.int64(rows),
            np.int64(first),
            np.int64(length),
            *map(np.int64, strides),
            *map(np.int64, counts),
        ),
    )


@lru_cache(maxsize=256)
def _kernel(taps: Taps, dtype: str, adds: bool, measures: bool) -> Any:
    """Compile the kernel for some taps; CuPy caches it on disk."""
    ndim = len(taps.radius)
    value = TYPES[dtype]
    terms = [
        f"{literal(weight, value)} * u[at{_offset(offset)}]"
        for offset, weight in zip(taps.offsets, taps.weights, strict=True)
    ]
    if adds:
        terms.insert(0, "added[at]")
    walk = [
        f"at += (rest % count{axis}) * stride{axis}; rest /= count{axis};"
        for axis in range(ndim - 2, 0, -1)
    ]
    if ndim > 1:
        walk.append("at += rest * stride0;")
    code = SOURCE % {
        "value": value,
        "threads": WIDTH * HEIGHT,
        "parameters": ", ".join(
            f"Long {name}{axis}" for name in ("stride", "count") for axis in range(ndim)
        ),
        "rest": "Long rest = row;" if ndim > 1 else "",
        "walk": "\n        ".join(walk),
        "sum": " + ".join(terms) or "Value(0)",
        "begin": "double changed = 0;" if measures else "",
        "measure": "changed += square(value - u[at]);" if measures else "",
        "reduce": REDUCE if measures else "",
    }
    return cupy.RawKernel(code, "sweep")


def _offset(offset: tuple[int, ...]) -> str:
    return "".join(f" + ({step}) * stride{axis}" for axis, step in enumerate(offset) if step)
