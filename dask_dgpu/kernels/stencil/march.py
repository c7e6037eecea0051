r"""Several sweeps of a stencil of 3 x 3 in one pass over memory, on the current CuPy stream.

::

      columns of a warp              rows in its registers
     |x x|. . . . . . . .|x x|       sweep 0    y-2 y-1  y           read from memory
     |_____________________|         sweep 1      y-3 y-2 y-1        each from three rows
       lane 0 ... lane 31            sweep 2        y-4 y-3 y-2      of the sweep before
                                     sweep 3 ...        written

A warp marches down the rows of a strip of columns. It keeps the last three rows of every sweep
in registers, and shuffles them between lanes. So a pass of S sweeps reads and writes each
element once, at the price of S more columns on either side of a strip and S rows above and
below (x), which several warps compute ([1]_). There is neither shared memory nor a barrier.

References
----------
.. [1] K. Matsumura, H. R. Zohouri, M. Wahib, T. Endo and S. Matsuoka, "AN5D: automated
   stencil framework for high-degree temporal blocking on GPUs", CGO (2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import cupy
import numpy as np

from dask_dgpu.kernels.stencil import Region, Taps

Array = Any

WARPS = 4
"""Warps of a thread block; each marches independently."""

MANY_WARPS = 4096
"""Warps that keep a GPU busy."""

LEAST_ROWS, MOST_ROWS = 32, 256
"""Rows of a warp, unless :data:`MOST_BLOCKS` blocks need more."""

MOST_BLOCKS = 65535
"""Blocks of threads across rows, by CUDA's definition."""

WIDTHS = {"float32": 4, "float64": 2, "complex64": 2, "complex128": 1}
"""Columns of a lane: 16 bytes."""

TYPES = {
    "float32": "float",
    "float64": "double",
    "complex64": "complex<float>",
    "complex128": "complex<double>",
}

SOURCE = r"""
#include <cupy/complex.cuh>
typedef long long Long;
typedef %(value)s Value;
#define SWEEPS %(sweeps)d
#define WIDTH %(width)d
#define ALL 0xffffffffu

__device__ double square(float x) { return (double) x * x; }
__device__ double square(double x) { return x * x; }
template <typename Real> __device__ double square(complex<Real> x) {
    return square(x.real()) + square(x.imag());
}
__device__ float before(float x) { return __shfl_up_sync(ALL, x, 1); }
__device__ float after(float x) { return __shfl_down_sync(ALL, x, 1); }
__device__ double before(double x) { return __shfl_up_sync(ALL, x, 1); }
__device__ double after(double x) { return __shfl_down_sync(ALL, x, 1); }
template <typename Real> __device__ complex<Real> before(complex<Real> x) {
    return complex<Real>(before(x.real()), before(x.imag()));
}
template <typename Real> __device__ complex<Real> after(complex<Real> x) {
    return complex<Real>(after(x.real()), after(x.imag()));
}

// A lane's part of a row; zeros where there is no memory.
__device__ void load(Value* part, const Value* __restrict__ from, int row, int x,
                     int height, int width) {
    const bool there = row >= 0 && row < height;
    #pragma unroll
    for (int v = 0; v < WIDTH; ++v) {
        const bool known = there && x + v >= 0 && x + v < width;
        part[v] = known ? from[(Long) row * width + x + v] : Value(0);
    }
}

extern "C" __global__ void __launch_bounds__(%(threads)d)
march(const Value* __restrict__ u, Value* __restrict__ out, const Value* __restrict__ added,
      double* change, int height, int width, int deep, %(parameters)s) {
    const int first_row[] = {%(first_row)s}, last_row[] = {%(last_row)s};
    const int first_column[] = {%(first_column)s}, last_column[] = {%(last_column)s};
    const int left = first_column[SWEEPS - 1] + (int) blockIdx.x * (32 * WIDTH - 2 * SWEEPS);
    const int right = min(left + 32 * WIDTH - 2 * SWEEPS, last_column[SWEEPS - 1]);
    const int x = left - SWEEPS + (int) threadIdx.x * WIDTH;
    const int top = first_row[SWEEPS - 1] + ((int) blockIdx.y * WARPS + (int) threadIdx.y) * deep;
    const int bottom = min(top + deep, last_row[SWEEPS - 1]);
    if (top >= bottom) return;
    double changed = 0;
    Value rows[SWEEPS][3][WIDTH], more[SWEEPS + 1][WIDTH];
    Value coming[WIDTH], coming_more[WIDTH];
    #pragma unroll
    for (int v = 0; v < WIDTH; ++v) {
        #pragma unroll
        for (int s = 0; s < SWEEPS; ++s) {
            rows[s][0][v] = rows[s][1][v] = rows[s][2][v] = Value(0);
            more[s][v] = more[s + 1][v] = Value(0);
        }
        coming_more[v] = Value(0);
    }
    load(coming, u, top - SWEEPS, x, height, width);
    for (int y = top - SWEEPS; y < bottom + SWEEPS; ++y) {
        Value made[WIDTH];
        #pragma unroll
        for (int v = 0; v < WIDTH; ++v) {
            made[v] = coming[v];
            #pragma unroll
            for (int s = SWEEPS; s > 1; --s) more[s][v] = more[s - 1][v];
            more[1][v] = coming_more[v];
        }
        load(coming, u, y + 1, x, height, width);
        if (ADDS) load(coming_more, added, y, x, height, width);
        #pragma unroll
        for (int s = 0; s < SWEEPS; ++s) {
            Value low[3], high[3];
            #pragma unroll
            for (int v = 0; v < WIDTH; ++v) {
                rows[s][0][v] = rows[s][1][v];
                rows[s][1][v] = rows[s][2][v];
                rows[s][2][v] = made[v];
            }
            #pragma unroll
            for (int k = 0; k < 3; ++k) {
                low[k] = before(rows[s][k][WIDTH - 1]);
                high[k] = after(rows[s][k][0]);
            }
            const int row = y - s - 1;
            const bool inside = row >= first_row[s] && row < last_row[s];
            #pragma unroll
            for (int v = 0; v < WIDTH; ++v) {
                const Value sum = %(sum)s;
                const bool kept = !inside || x + v < first_column[s] || x + v >= last_column[s];
                made[v] = kept ? rows[s][1][v] : sum;
            }
        }
        const int row = y - SWEEPS;
        if (row < top) continue;
        #pragma unroll
        for (int v = 0; v < WIDTH; ++v) {
            if (x + v < left || x + v >= right) continue;
            out[(Long) row * width + x + v] = made[v];
            if (MEASURES) changed += square(made[v] - rows[SWEEPS - 1][1][v]);
        }
    }
    if (MEASURES) {
        for (int lane = 16; lane; lane /= 2) changed += __shfl_down_sync(ALL, changed, lane);
        if (threadIdx.x == 0) atomicAdd(change, changed);
    }
}
"""


def march(
    out: Array,
    u: Array,
    taps: Taps,
    regions: Sequence[Region],
    added: Array | None,
    change: Array | None,
) -> None:
    """Sweep up to ``MOST_SWEEPS`` times from ``u`` to ``out``; as ``stencil.sweeps`` does.

    The taps have a radius of at most 1 along two axes. Only the last region of ``out`` is written.
    """
    rows, columns = regions[-1]
    height, width = rows.stop - rows.start, columns.stop - columns.start
    if height <= 0 or width <= 0:
        return
    strip = 32 * WIDTHS[u.dtype.name] - 2 * len(regions)
    strips = -(-width // strip)
    deep = min(MOST_ROWS, max(LEAST_ROWS, -(-height * strips // MANY_WARPS)))
    deep = max(deep, -(-height // (MOST_BLOCKS * WARPS)))
    grid = strips, -(-height // (deep * WARPS))
    kernel = _kernel(taps, u.dtype.name, len(regions), added is not None, change is not None)
    edges = chain.from_iterable((r.start, r.stop, c.start, c.stop) for r, c in regions)
    kernel(
        grid,
        (32, WARPS),
        (
            u,
            out,
            u if added is None else added,
            np.uint64(0) if change is None else change,
            *map(np.int32, u.shape),
            np.int32(deep),
            *map(np.int32, edges),
        ),
    )


@lru_cache(maxsize=256)
def _kernel(taps: Taps, dtype: str, sweeps: int, adds: bool, measures: bool) -> Any:
    """Compile the kernel for some taps; CuPy caches it on disk."""
    value = TYPES[dtype]
    terms = [
        f"{literal(weight, value)} * {_neighbour(*offset)}"
        for offset, weight in zip(taps.offsets, taps.weights, strict=True)
    ]
    if adds:
        terms.insert(0, "more[s + 1][v]")
    names = ("first_row", "last_row", "first_column", "last_column")
    each = {name: [f"{name}_{sweep}" for sweep in range(sweeps)] for name in names}
    code = SOURCE % {
        "value": value,
        "sweeps": sweeps,
        "width": WIDTHS[dtype],
        "threads": 32 * WARPS,
        "parameters": ", ".join(
            f"int {each[name][sweep]}" for sweep in range(sweeps) for name in names
        ),
        "sum": " + ".join(terms) or "Value(0)",
        **{name: ", ".join(values) for name, values in each.items()},
    }
    options = (f"-DADDS={int(adds)}", f"-DMEASURES={int(measures)}", f"-DWARPS={WARPS}")
    return cupy.RawKernel(code, "march", options=options)


def _neighbour(down: int, along: int) -> str:
    """Return the expression for the element of a tap in a lane."""
    row = f"rows[s][{down + 1}]"
    if along < 0:
        return f"(v > 0 ? {row}[v > 0 ? v - 1 : 0] : low[{down + 1}])"
    if along > 0:
        return f"(v < WIDTH - 1 ? {row}[v < WIDTH - 1 ? v + 1 : v] : high[{down + 1}])"
    return f"{row}[v]"


def literal(weight: complex, value: str) -> str:
    """Return a weight as C++; the compiler rounds it to the dtype."""
    real = value.removeprefix("complex<").removesuffix(">")
    number = complex(weight)
    if number.imag:
        return f"{value}(({real}) ({number.real!r}), ({real}) ({number.imag!r}))"
    return f"({real}) ({number.real!r})"
