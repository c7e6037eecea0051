"""Products with factors by position in CUDA memory: one launch, one read and one write."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

import cupy
import numpy as np

from dask_dgpu.kernels.fused.launching import compiled

Array = Any

THREADS = 256
SIDE = 64
"""Entries of the two tables of a thread block, for ``SIDE**2`` columns of a row."""

REALS = {"complex64": "float", "complex128": "double"}

TWIDDLE = r"""
typedef long long Long;
struct alignas(2 * sizeof(Real)) Number { Real re, im; };
struct Factor { double re, im; };

extern "C" __global__ void __launch_bounds__(THREADS)
twiddle(const Number* block, Number* result, Long rows, Long columns, Long after,
        Long first_row, Long first_column, Long n, double turns) {
    __shared__ Factor near[SIDE], far[SIDE];
    const Long spans = (columns + SIDE * SIDE - 1) / (SIDE * SIDE);
    const Long line = blockIdx.x / spans, start = blockIdx.x % spans * (SIDE * SIDE);
    const int thread = threadIdx.x, entry = thread % SIDE;
    if (thread < 2 * SIDE) {
        const bool coarse = thread >= SIDE;
        const Long column = coarse ? first_column + start + entry * SIDE : entry;
        Long power = (first_row + line % rows) * column;
        if (2 * power > n) power -= n;
        Factor factor;
        sincospi(turns * ((double) power / (double) n), &factor.im, &factor.re);
        (coarse ? far : near)[entry] = factor;
    }
    __syncthreads();
    const Long width = columns - start < SIDE * SIDE ? columns - start : SIDE * SIDE;
    const Long first = (line * columns + start) * after, count = width * after;
    for (Long at = thread; at < count; at += THREADS) {
        const int column = after == 1 ? at : at / after;
        const Factor a = far[column / SIDE], b = near[column % SIDE];
        const double re = a.re * b.re - a.im * b.im, im = a.re * b.im + a.im * b.re;
        const Number x = block[first + at];
        result[first + at] = {(Real) (x.re * re - x.im * im), (Real) (x.re * im + x.im * re)};
    }
}
"""


def twiddled_cuda(block: Array, start: Sequence[int], axis: int, n: int, sign: int) -> Array:
    """Multiply as :func:`dask_dgpu.kernels.fft.factors.twiddled`, in single or double precision."""
    block = cupy.ascontiguousarray(block)
    result = cupy.empty_like(block)
    rows, columns = block.shape[axis : axis + 2]
    lines, after = prod(block.shape[: axis + 1]), prod(block.shape[axis + 2 :])
    if block.size:
        head = f"constexpr int THREADS = {THREADS}, SIDE = {SIDE};\n"
        source = f"typedef {REALS[block.dtype.name]} Real;\n{head}{TWIDDLE}"
        sizes = (rows, columns, after, start[axis], start[axis + 1], n)
        arguments = (block, result, *map(np.int64, sizes), np.float64(2 * sign))
        blocks = lines * -(-columns // SIDE**2)
        compiled(source, "twiddle")((blocks,), (THREADS,), arguments)
    return result


CHIRP = r"""
// exp(sign pi i m m / n); the digits of m are multiplied from the highest on, so that none is lost
__device__ complex<double> chirp(long long m, long long n, int sign, int bits, int digit) {
    long long square = 0;
    for (int shift = (bits - 1) / digit * digit; shift >= 0; shift -= digit)
        square = ((square << digit) % (2 * n) + m * (m >> shift & ((1LL << digit) - 1)) % (2 * n))
            % (2 * n);
    if (square > n) square -= 2 * n;
    double re, im;
    sincospi(sign * ((double) square / (double) n), &im, &re);
    return complex<double>(re, im);
}
"""
CHIRP_OF = "int64 n, int32 sign, int32 bits, int32 digit"

CHIRPED = cupy.ElementwiseKernel(
    f"int64 first, int64 length, int64 after, {CHIRP_OF}, float64 scale",
    "T y",
    """
    const complex<double> factor = chirp(first + i / after % length, n, sign, bits, digit) * scale;
    y = T(complex<double>(y) * factor);
    """,
    "dgpu_chirped",
    preamble=CHIRP,
)

FILTER = cupy.ElementwiseKernel(
    f"int64 first, int64 period, {CHIRP_OF}",
    "T y",
    """
    const long long m = first + i, distance = min(m, period - m);
    y = distance < n ? T(chirp(distance, n, sign, bits, digit)) : T(0);
    """,
    "dgpu_chirp_filter",
    preamble=CHIRP,
)


def _chirp_of(n: int, sign: int) -> tuple[int, int, int, int]:
    bits = (2 * n).bit_length()
    return n, sign, bits, 62 - bits


def chirped_cuda(
    block: Array, start: Sequence[int], axis: int, n: int, sign: int, dtype: str, scale: float
) -> Array:
    """Multiply as :func:`dask_dgpu.kernels.fft.factors.chirped`."""
    result = block.astype(dtype, order="C")
    after = prod(block.shape[axis + 1 :])
    CHIRPED(
        start[axis], max(1, block.shape[axis]), max(1, after), *_chirp_of(n, sign), scale, result
    )
    return result


def chirp_filter_cuda(first: int, result: Array, period: int, n: int, sign: int) -> Array:
    """Fill a contiguous result as :func:`dask_dgpu.kernels.fft.factors.chirp_filter`."""
    return FILTER(first, period, *_chirp_of(n, -sign), result)


@cache
def quotient(axes: int, is_complex: bool) -> Any:
    """Return the kernel that divides by a sum of so many numbers; a quotient by 0 is 0."""
    numbers = [f"v{axis}" for axis in range(axes)]
    value = "T(x.real() * factor, x.imag() * factor)" if is_complex else "x * factor"
    return cupy.ElementwiseKernel(
        ", ".join(["T x", *(f"float64 {number}" for number in numbers)]),
        "T y",
        f"""
        const double total = {" + ".join(numbers)}, factor = total == 0 ? -0.0 : 1 / total;
        y = {value};
        """,
        f"dgpu_quotient_{axes}_{'complex' if is_complex else 'real'}",
    )
