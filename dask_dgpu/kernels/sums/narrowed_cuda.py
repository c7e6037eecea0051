"""Conversion from and to single precision and bfloat16 in CUDA memory, with subnormal numbers.

CuPy compiles with ``-ftz=true``, so its own conversions flush them to zero.
"""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from graph_opt.model.layout import BFLOAT16, dtype_named

Array = Any

TO_DOUBLE = cupy.ElementwiseKernel(
    "float32 single",
    "float64 double_",
    'asm("cvt.f64.f32 %0, %1;" : "=d"(double_) : "f"(single));',
    "dgpu_to_double",
)

TO_SINGLE = cupy.ElementwiseKernel(
    "float64 double_",
    "float32 single",
    'asm("cvt.rn.f32.f64 %0, %1;" : "=f"(single) : "d"(double_));',
    "dgpu_to_single",
)

# to nearest, ties to even; NaN stays NaN even if the payload in the upper bits is 0
TO_BFLOAT16 = cupy.ElementwiseKernel(
    "uint32 single",
    "uint16 half",
    """
    const bool nan = (single & 0x7FFFFFFF) > 0x7F800000;
    half = nan ? (single >> 16) | 0x40 : (single + 0x7FFF + ((single >> 16) & 1)) >> 16;
    """,
    "dgpu_to_bfloat16",
)


def to_double(values: Array) -> Array:
    """Return CuPy numbers as float64."""
    if values.dtype.name in ("float32", BFLOAT16):
        return TO_DOUBLE(values.astype(np.float32, copy=False))
    return values.astype(np.float64, copy=False)


def to_single(values: Array) -> Array:
    """Return CuPy numbers as float32, each rounded once from a double."""
    return TO_SINGLE(to_double(values))


def to_bfloat16(values: Array) -> Array:
    """Return CuPy numbers as bfloat16, by way of single precision."""
    return TO_BFLOAT16(to_single(values).view(np.uint32)).view(dtype_named(BFLOAT16))
