"""Exact products of numbers in CUDA memory: one launch, one read and one write."""

from __future__ import annotations

from functools import cache
from typing import Any

import cupy

Array = Any

WIDE = {
    # CuPy compiles with -ftz=true, by which a conversion flushes subnormal numbers to zero
    "float32": 'double {0}; asm("cvt.f64.f32 %0, %1;" : "=d"({0}) : "f"({1}));',
    "float64": "const double {0} = {1};",
}
REST = "const double r = fma(p, q, -whole); rest = isfinite(whole) && isfinite(r) ? r : 0.0;"


def products(x: Array, y: Array) -> list[Array]:
    """Return the terms of the products of numbers in single or double precision.

    Those of single precision are one term.
    """
    terms = 1 if x.dtype.itemsize == y.dtype.itemsize == 4 else 2
    found = [cupy.empty(x.shape, "float64") for _ in range(terms)]
    _kernel(x.dtype.name, y.dtype.name, terms)(x, y, *found)
    return found


@cache
def _kernel(x: str, y: str, terms: int) -> Any:
    body = f"{WIDE[x].format('p', 'x')} {WIDE[y].format('q', 'y')} whole = p * q;"
    results = "float64 whole, float64 rest" if terms == 2 else "float64 whole"
    return cupy.ElementwiseKernel(
        f"{x} x, {y} y", results, body + REST * (terms == 2), f"dgpu_product_{x}_{y}"
    )
