"""Cosine and sine transforms of lines in CUDA memory: one FFT between two kernels.

::

    lines --ARRANGE--> numbers of the FFT --rfft, irfft or fft--> --RESULT--> transformed lines

Types I are the FFT of the even or odd extension. Types II and III take an FFT of the line itself,
with its odd elements backwards after the even ones ([1]_), and type IV one of twice the length. The
kernels convert, crop and pad, so a line is read and written once by each.

References
----------
.. [1] J. Makhoul, "A fast cosine transform in one and two dimensions", IEEE Transactions on
   Acoustics, Speech, and Signal Processing 28 (1980).
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import cupy
import cupyx.scipy.fft
import numpy as np

from dask_dgpu.kernels.fft.factors import spans

Array = Any

WORKSPACE = 256 * 2**20
"""Approximate bytes of the FFT of some lines."""

LINE = """
    const long long line = first + i / m, j = i % m;
    auto at = [&](long long s) { return s < given ? (double) x[line * given + s] : 0.0; };
"""

EXTENDED = {
    "dct1": """
    const long long s = j < n ? j : m - j;
    y = at(s) * (s == 0 || s == n - 1 ? end : 1.0);
    """,
    "dst1": "y = j == 0 || j == n + 1 ? 0.0 : j <= n ? at(j - 1) : -at(m - j - 1);",
}
SPLIT = "const long long s = 2 * j < n ? 2 * j : 2 * (n - 1 - j) + 1;"
HALF_SPECTRUM = """
    const double a = j == 0 ? end * {first} : {ahead}, b = j == 0 ? 0.0 : {behind};
    double c, s;
    sincospi((double) j / (2 * n), &s, &c);
    y = T(a * c + b * s, a * s - b * c);
"""
TURNED = """
    double c, s;
    sincospi((double) j / (2 * n), &s, &c);
    const double a = j < n ? at(j) : 0.0;
    y = T(a * c, -a * s);
"""
ARRANGE = {
    **EXTENDED,
    "dct2": f"{SPLIT} y = at(s);",
    "dst2": f"{SPLIT} y = s & 1 ? -at(s) : at(s);",
    "dct3": HALF_SPECTRUM.format(first="at(0)", ahead="at(j)", behind="at(n - j)"),
    "dst3": HALF_SPECTRUM.format(first="at(n - 1)", ahead="at(n - 1 - j)", behind="at(j - 1)"),
    "dct4": TURNED,
    "dst4": TURNED,
}
"""Number ``j`` of the ``m`` that the FFT of a line takes; ``end`` is the weight of its ends."""

FROM_HALF = """
    const long long q = 2 * k <= n ? k : n - k;
    const auto z = x[line * m + q];
    double c, s;
    sincospi((double) q / (2 * n), &s, &c);
    y = scale * (k == 0 ? end : 1.0)
        * (2 * k <= n ? 2 * (z.real() * c + z.imag() * s) : 2 * (z.real() * s - z.imag() * c));
"""
FROM_WHOLE = """
    const auto z = x[line * m + k];
    double c, s;
    sincospi((double) (2 * k + 1) / (4 * n), &s, &c);
    y = 2 * scale * ({});
"""
JOINED = "x[line * m + (k & 1 ? n - 1 - k / 2 : k / 2)]"
RESULT = {
    "dct1": "y = scale * x[line * m + k].real() * (k == 0 || k == n - 1 ? end : 1.0);",
    "dst1": "y = -scale * x[line * m + k + 1].imag();",
    "dct2": f"const long long k = place; {FROM_HALF}",
    "dst2": f"const long long k = n - 1 - place; {FROM_HALF}",
    "dct3": f"y = scale * {JOINED};",
    "dst3": f"y = (k & 1 ? -scale : scale) * {JOINED};",
    "dct4": FROM_WHOLE.format("z.real() * c + z.imag() * s"),
    "dst4": FROM_WHOLE.format("z.real() * s - z.imag() * c"),
}
"""Element ``k`` of the result, from the ``m`` numbers that the FFT of its line returned."""


@cache
def _arrange(kind: str) -> Any:
    given = "raw S x, int64 first, int64 given, int64 n, int64 m, float64 end"
    return cupy.ElementwiseKernel(given, "T y", LINE + ARRANGE[kind], f"dgpu_{kind}_arrange")


@cache
def _result(kind: str) -> Any:
    given = "raw S x, int64 n, int64 m, float64 scale, float64 end"
    name = "place" if kind in ("dct2", "dst2") else "k"
    line = f"const long long line = i / n, {name} = i % n;"
    return cupy.ElementwiseKernel(given, "T y", line + RESULT[kind], f"dgpu_{kind}_result")


def transform(block: Array, kind: str, n: int, axis: int, norm: str, dtype: str) -> Array:
    """Transform a block along an axis, as a new array of a dtype whose lines are contiguous.

    The block is cropped, or padded with zeros.
    """
    if np.dtype(dtype).kind == "c":
        real = block.real.dtype.name
        parts = [transform(x, kind, n, axis, norm, real) for x in (block.real, block.imag)]
        joined = cupy.empty_like(parts[0], dtype)
        joined.real, joined.imag = parts
        return joined
    lines = np.moveaxis(block, axis, -1)
    *outer, given = lines.shape
    result = cupy.empty((*outer, n), dtype)
    flat = result.reshape((-1, n))
    period = 2 * (n + {"dct1": -1, "dst1": 1}.get(kind, 0))  # SciPy's logical size
    scale = float(period) ** {"backward": 0.0, "ortho": -0.5, "forward": -1.0}[norm]
    weight = math.sqrt(2) if norm == "ortho" else 1.0
    length = {"1": period, "2": n, "3": n // 2 + 1, "4": period}[kind[-1]]
    number = np.result_type(dtype, np.complex64) if kind[-1] in "34" else result.dtype
    for low, high in spans(len(flat), max(1, WORKSPACE // (2 * length * number.itemsize))):
        x = cupy.empty((high - low, length), number)
        _arrange(kind)(lines, low, given, n, length, weight, x)
        x = _fft(x, kind, n)
        _result(kind)(x, n, x.shape[1], scale, 1 / weight, flat[low:high])
    return np.moveaxis(result, -1, axis)


def _fft(x: Array, kind: str, n: int) -> Array:
    if kind[-1] in "12":
        return cupyx.scipy.fft.rfft(x, overwrite_x=True)
    if kind[-1] == "3":
        return cupyx.scipy.fft.irfft(x, n, norm="forward", overwrite_x=True)
    return cupyx.scipy.fft.fft(x, overwrite_x=True)
