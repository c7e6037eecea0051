"""Running sums along an axis whose neighbours are apart in memory, on the current CuPy stream.

The axis is cut into parts. Neighbouring threads take neighbouring lines, so that reads are wide::

    1  totals of all parts but the last        a thread for each part of each line
    2  totals of all parts before a part       a thread for each line
    3  the running sum from there              a thread for each part of each line

So the array is read twice and written once. Each part adds up in order, in the result's dtype.
"""

from __future__ import annotations

from math import prod
from typing import Any

import cupy
import numpy as np

from dask_dgpu.kernels.fused.device_functions import TYPES
from dask_dgpu.kernels.fused.launching import compiled

Array = Any

DTYPES = TYPES.keys() - {"float16", "complex64", "complex128"}
"""Dtypes of elements; sums are of four or eight bytes."""

THREADS = 256
"""Threads of a thread block."""

BUSY = 1 << 18
"""Threads that keep a GPU busy."""

LEAST = 16
"""Least elements of a part."""

NARROW = 32
"""With fewer neighbours a warp's reads are not wide: CuPy's function is used."""

SOURCE = r"""
typedef long long Long;

// x has the axes (outer, n, inner), totals (outer, parts, inner)
extern "C" __global__ void __launch_bounds__(THREADS)
totals(const In* x, Out* totals, Long count, Long n, Long inner, Long parts, Long length) {
    const Long at = (Long) blockIdx.x * THREADS + threadIdx.x;
    if (at >= count) return;
    const Long part = at / inner % parts, first = part * length;
    if (part == parts - 1) return;  // nobody reads it
    const In* from = x + (at / inner / parts * n + first) * inner + at % inner;
    Out total = (Out) *from;
    #pragma unroll 8
    for (Long k = 1; k < length; ++k) total = total OP (Out) from[k * inner];
    totals[at] = total;
}

extern "C" __global__ void __launch_bounds__(THREADS)
before(Out* totals, Long count, Long inner, Long parts) {
    const Long at = (Long) blockIdx.x * THREADS + threadIdx.x;
    if (at >= count) return;
    Out* line = totals + at / inner * parts * inner + at % inner;
    for (Long part = 1; part < parts - 1; ++part)
        line[part * inner] = line[(part - 1) * inner] OP line[part * inner];
}

extern "C" __global__ void __launch_bounds__(THREADS)
running(const In* x, const Out* totals, Out* out,
        Long count, Long n, Long inner, Long parts, Long length) {
    const Long at = (Long) blockIdx.x * THREADS + threadIdx.x;
    if (at >= count) return;
    const Long part = at / inner % parts, first = part * length;
    const Long start = (at / inner / parts * n + first) * inner + at % inner;
    const Long stop = min(length, n - first);
    Out total = (Out) x[start];
    if (part > 0) total = totals[at - inner] OP total;
    out[start] = total;
    #pragma unroll 8
    for (Long k = 1; k < stop; ++k) {
        total = total OP (Out) x[start + k * inner];
        out[start + k * inner] = total;
    }
}
"""


def scanned(operator: str, x: Array, axis: int, dtype: np.dtype[Any]) -> Array | None:
    """Return the running sum or product, ``None`` if the kernel would not be quicker.

    Parameters
    ----------
    operator : {"+", "*"}
        What joins two elements.
    x : cupy.ndarray
        The elements.
    axis : int
        The axis, from 0.
    dtype : dtype
        Of the result.
    """
    n, inner, outer = x.shape[axis], prod(x.shape[axis + 1 :]), prod(x.shape[:axis])
    known = x.dtype.name in DTYPES and dtype.name in DTYPES and dtype.itemsize >= 4
    if not known or inner < NARROW or not x.size:
        return None
    x, out = cupy.ascontiguousarray(x), cupy.empty(x.shape, dtype)
    parts = max(1, min(BUSY // (outer * inner), n // LEAST))
    length = -(-n // parts)
    parts = -(-n // length)
    totals = cupy.empty((outer, parts, inner), dtype)
    lines, threads = outer * inner, outer * parts * inner
    if parts > 1:
        sizes = map(np.int64, (threads, n, inner, parts, length))
        _launch(operator, x.dtype, dtype, "totals", threads, x, totals, *sizes)
    if parts > 2:
        _launch(
            operator, x.dtype, dtype, "before", lines, totals, *map(np.int64, (lines, inner, parts))
        )
    sizes = map(np.int64, (threads, n, inner, parts, length))
    _launch(operator, x.dtype, dtype, "running", threads, x, totals, out, *sizes)
    return out


def _launch(
    operator: str, given: np.dtype[Any], made: np.dtype[Any], name: str, threads: int, *args: Any
) -> None:
    names = {"In": TYPES[given.name], "Out": TYPES[made.name]}
    head = "".join(f"typedef {value} {key};\n" for key, value in names.items())
    source = f"#define OP {operator}\n#define THREADS {THREADS}\n{head}{SOURCE}"
    compiled(source, name)((-(-threads // THREADS),), (THREADS,), args)
